// Faults: ranks that are killed, never join, or disagree; abort. Each test has its own processes.
#include <chrono>
#include <thread>

#include "platform/conformance/collectives.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

constexpr int64_t kCount = 1000;
constexpr int64_t kLargeCount = int64_t{2} << 20;  // several of the pieces into which a plugin divides an operation
constexpr int64_t kPatience = 20000;               // a timeout in ms that only ends what would else hang

int last_rank(const Context& t) { return t.world() - 1; }
bool is_last(const Context& t) { return t.rank() == last_rank(t); }

// Two buffers and a stream; calls are made without checks, because they are meant to fail.
class Caller {
 public:
  Caller(Context& t, concord_comm comm, int64_t largest_count = kCount)
      : t_(t), comm_(comm), stream_(t), send_(t, 8 * largest_count), recv_(t, 8 * largest_count) {}

  concord_status call(int64_t count = kCount, concord_dtype dtype = CONCORD_DTYPE_F32,
                      concord_reduce_op reduce = CONCORD_REDUCE_SUM) {
    const concord_comm_table& c = t_.comms();
    t_.step("comm.all_reduce");
    return c.all_reduce(c.self, comm_, send_.get(), recv_.get(), count, dtype, reduce, stream_.get());
  }
  concord_status broadcast(int32_t root) {
    const concord_comm_table& c = t_.comms();
    t_.step("comm.broadcast");
    return c.broadcast(c.self, comm_, send_.get(), recv_.get(), kCount, CONCORD_DTYPE_F32, root, stream_.get());
  }
  concord_status wait() {
    t_.step("stream.synchronize after a collective");
    return t_.streams().synchronize(t_.streams().self, stream_.get());
  }
  // Returns the outcome of a call: rejected immediately, or failed on the stream.
  concord_status outcome(concord_status called) { return called != CONCORD_STATUS_OK ? called : wait(); }

  concord_stream stream() const { return stream_.get(); }

 private:
  Context& t_;
  concord_comm comm_;
  Stream stream_;
  DeviceMemory send_;
  DeviceMemory recv_;
};

concord_status error_of(Context& t, concord_comm comm) {
  concord_status error = -1;
  CHECK_OK(t.comms().async_error(t.comms().self, comm, &error));
  return error;
}

void require_outcome(Context& t, concord_status got, concord_status wanted, const char* what) {
  const std::string detail = take_detail();
  CHECK(got == wanted, "%s: %s \"%s\", expected %s", what, status_text(got).c_str(), detail.c_str(),
        status_text(wanted).c_str());
  CHECK(!detail.empty(), "%s: %s without an error message", what, status_text(got).c_str());
}

// After a failure: async_error reports it, later calls fail with the same code, destroy works.
void require_failed_for_good(Context& t, Comm& comm, Caller& caller, concord_status wanted) {
  CHECK(error_of(t, comm.get()) == wanted, "comm.async_error returned %s, expected %s",
        status_text(error_of(t, comm.get())).c_str(), status_text(wanted).c_str());
  require_outcome(t, caller.call(), wanted, "a later call on the failed communicator");
  CHECK_OK(comm.destroy());
}

void warm_up(Context& t, Caller& caller) { CHECK_OK(caller.outcome(caller.call())); }

void killed_rank_is_lost(Context& t) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  if (is_last(t)) t.die();
  const concord_status status = caller.outcome(caller.call());
  const std::string detail = take_detail();
  CHECK(status == CONCORD_STATUS_PEER_LOST, "after a rank was killed: %s \"%s\", expected PEER_LOST",
        status_text(status).c_str(), detail.c_str());
  CHECK(detail.find(text("%d", last_rank(t))) != std::string::npos, "the error message does not name rank %d: '%s'",
        last_rank(t), detail.c_str());
  require_failed_for_good(t, comm, caller, CONCORD_STATUS_PEER_LOST);
}

void rank_killed_in_mid_flight(Context& t) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  concord_status status = CONCORD_STATUS_OK;
  for (int i = 0; i < 2000 && status == CONCORD_STATUS_OK; ++i) {
    if (is_last(t) && i == 20) t.die();
    status = i % 5 == 4 ? caller.outcome(caller.call()) : caller.call();
  }
  if (status == CONCORD_STATUS_OK) status = caller.wait();
  require_outcome(t, status, CONCORD_STATUS_PEER_LOST, "a rank was killed in the middle of a series");
  require_failed_for_good(t, comm, caller, CONCORD_STATUS_PEER_LOST);
}

void survivors_go_on(Context& t) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  if (is_last(t)) t.die();
  require_outcome(t, caller.outcome(caller.call()), CONCORD_STATUS_PEER_LOST, "after a rank was killed");
  CHECK_OK(comm.destroy());
  const concord_comm_table& c = t.comms();
  int64_t bytes = 0;
  CHECK_OK(c.unique_id_size(c.self, &bytes));
  std::string id(static_cast<size_t>(bytes), '\0');
  if (t.rank() == 0) CHECK_OK(c.unique_id_create(c.self, id.data(), bytes));
  id = t.gather_survivors(id)[0];
  const concord_comm_config config = comm_config("survivors", kPatience);
  concord_comm smaller = nullptr;
  CHECK_OK(c.init(c.self, t.device(), t.world() - 1, t.rank(), id.data(), bytes, &config, &smaller));
  Bench(t, smaller, t.stream(), t.world() - 1, t.rank())
      .run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, kCount});
  CHECK_OK(c.destroy(c.self, smaller));
}

void silent_rank_is_a_timeout(Context& t) {
  Comm comm = Comm::connect(t, 3000 * slowness());
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  if (!is_last(t)) {
    require_outcome(t, caller.outcome(caller.call()), CONCORD_STATUS_TIMEOUT, "a rank never joined a collective");
    CHECK(caller.wait() == CONCORD_STATUS_OK, "stream.synchronize reports the same error twice");
    require_failed_for_good(t, comm, caller, CONCORD_STATUS_TIMEOUT);
  }
  t.meet();
}

void absent_rank_is_a_timeout_of_init(Context& t) {
  const concord_comm_table& c = t.comms();
  const std::string id = shared_unique_id(t);
  const concord_comm_config config = comm_config("never complete", 500 * slowness());
  if (!is_last(t)) {
    concord_comm comm = nullptr;
    t.step("comm.init without the last rank");
    const concord_status status =
        c.init(c.self, t.device(), t.world(), t.rank(), id.data(), static_cast<int64_t>(id.size()), &config, &comm);
    require_outcome(t, status, CONCORD_STATUS_TIMEOUT, "a rank never joined comm.init");
  }
  t.meet();
}

// The last rank makes a different call from the others; all of them have to be told.
void disagreement_is_refused(Context& t, const std::function<concord_status(Caller&)>& usual,
                             const std::function<concord_status(Caller&)>& different) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get(), kLargeCount);
  warm_up(t, caller);
  const concord_status status = caller.outcome(is_last(t) ? different(caller) : usual(caller));
  require_outcome(t, status, CONCORD_STATUS_INVALID_ARGUMENT, "ranks made different calls");
  require_failed_for_good(t, comm, caller, CONCORD_STATUS_INVALID_ARGUMENT);
}

void failed_communicator_harms_no_other(Context& t) {
  Comm bad = Comm::connect(t, 3000 * slowness());  // a vendor's set-up alone can take a second
  Comm good = Comm::connect(t, kPatience);
  Caller caller(t, bad.get());
  warm_up(t, caller);
  if (!is_last(t)) require_outcome(t, caller.outcome(caller.call()), CONCORD_STATUS_TIMEOUT, "a rank never joined");
  t.meet();
  CHECK(error_of(t, good.get()) == CONCORD_STATUS_OK, "the failure of one communicator is reported for another");
  Bench(t, good.get(), t.stream(), t.world(), t.rank())
      .run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, kCount});
}

void abort_ends_waiting(Context& t) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  if (!is_last(t)) {
    t.require_ok(caller.call(), "comm.all_reduce");
    run_threads(2, [&](int thread) {
      if (thread == 0)
        require_outcome(t, caller.wait(), CONCORD_STATUS_ABORTED, "this rank aborted a waiting operation");
      if (thread == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK_OK(t.comms().abort(t.comms().self, comm.get()));
      }
    });
    require_failed_for_good(t, comm, caller, CONCORD_STATUS_ABORTED);
  }
  t.meet();
}

void abort_frees_the_others(Context& t) {
  if (t.capability(CONCORD_CAP_COMM_ABORT) < 2)
    t.skip_unsupported("comm.abort ends only the operations of the calling rank");
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  if (is_last(t)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_OK(t.comms().abort(t.comms().self, comm.get()));
  } else {
    require_outcome(t, caller.outcome(caller.call()), CONCORD_STATUS_ABORTED, "another rank aborted the communicator");
  }
  require_failed_for_good(t, comm, caller, CONCORD_STATUS_ABORTED);
  t.meet();
}

void abort_of_an_idle_communicator(Context& t) {
  Comm comm = Comm::connect(t, kPatience);
  Caller caller(t, comm.get());
  warm_up(t, caller);
  t.meet();
  CHECK_OK(t.comms().abort(t.comms().self, comm.get()));
  require_failed_for_good(t, comm, caller, CONCORD_STATUS_ABORTED);
  Bench(t).run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, kCount});
}

Test fault(std::string name, std::vector<std::string> needs, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body), std::move(needs)};
  test.least_world = 2;
  test.most_world = 3;
  test.processes = Processes::kFresh;
  test.deadline_s = 60;
  return test;
}

void add_disagreements(Registry& registry) {
  const std::vector<std::string> needs = {CONCORD_CAP_COMM_DETECTS_MISMATCH};
  using Call = std::function<concord_status(Caller&)>;
  const Call usual = [](Caller& caller) { return caller.call(); };
  const auto add = [&](const char* name, const Call& mine, const Call& different) {
    registry.add(fault(name, needs, [mine, different](Context& t) { disagreement_is_refused(t, mine, different); }));
  };
  add("RanksThatDisagreeOnTheCountAreRefused", usual, [](Caller& caller) { return caller.call(kCount - 1); });
  add(
      "RanksThatDisagreeOnALargeCountAreRefused", [](Caller& caller) { return caller.call(kLargeCount); },
      [](Caller& caller) { return caller.call(kLargeCount / 2); });
  add("RanksThatDisagreeOnTheDtypeAreRefused", usual,
      [](Caller& caller) { return caller.call(kCount, CONCORD_DTYPE_I32); });
  add("RanksThatDisagreeOnTheReductionAreRefused", usual,
      [](Caller& caller) { return caller.call(kCount, CONCORD_DTYPE_F32, CONCORD_REDUCE_MAX); });
  add("RanksThatDisagreeOnTheOperationAreRefused", usual, [](Caller& caller) { return caller.broadcast(0); });
  add(
      "RanksThatDisagreeOnTheRootAreRefused", [](Caller& caller) { return caller.broadcast(0); },
      [](Caller& caller) { return caller.broadcast(1); });
}

}  // namespace

void add_comm_fault_tests(Registry& registry) {
  const std::vector<std::string> loss = {CONCORD_CAP_COMM_DETECTS_LOSS};
  const std::vector<std::string> timeout = {CONCORD_CAP_COMM_TIMEOUT};
  const std::vector<std::string> abort = {CONCORD_CAP_COMM_ABORT};
  registry.add(fault("AKilledRankIsReportedAsLost", loss, killed_rank_is_lost));
  registry.add(fault("ARankKilledInMidFlightIsReportedAsLost", loss, rank_killed_in_mid_flight));
  registry.add(fault("TheSurvivorsOfALossGoOnWithANewCommunicator", loss, survivors_go_on));
  registry.add(fault("ARankThatNeverArrivesIsATimeout", timeout, silent_rank_is_a_timeout));
  registry.add(fault("ARankThatNeverJoinsIsATimeoutOfInit", timeout, absent_rank_is_a_timeout_of_init));
  registry.add(fault("AFailedCommunicatorHarmsNoOther", timeout, failed_communicator_harms_no_other));
  add_disagreements(registry);
  registry.add(fault("AbortEndsAWaitingOperation", abort, abort_ends_waiting));
  registry.add(fault("AbortOnOneRankFreesTheOthers", abort, abort_frees_the_others));
  registry.add(fault("AnIdleCommunicatorCanBeAborted", abort, abort_of_an_idle_communicator));
}

}  // namespace concord::conformance
