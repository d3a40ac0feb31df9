// The leader's lease and the record of a job in etcd.
//
// Two keys: PREFIX/leader, which the leader creates with a lease and keeps alive every third of its time, and
// PREFIX/membership, which only the holder of the first can write. A launcher whose lease may have expired does not
// lead, whether etcd is unreachable or not: it counts from the moment before it last asked for a renewal. The record
// outlives its leader by |record_ttl|, in which another one can continue the job.
//
// A thread asks etcd: while this launcher holds the lease, and after each call of leader().
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/launch/job/etcd_client.h"
#include "core/launch/job/leader_store.h"

namespace concord {

struct EtcdLeaderOptions {
  std::string prefix = {};             // "/concord/my-job"
  std::chrono::seconds lease_ttl{10};  // of the leader
  std::chrono::seconds record_ttl{600};
};

class EtcdLeader final : public LeaderStore {
 public:
  EtcdLeader(std::unique_ptr<EtcdClient> client, EtcdLeaderOptions options);
  ~EtcdLeader() override;
  std::optional<LeaderAddress> leader() override;
  void campaign(const LeaderAddress& self) override;
  bool leads() override;
  bool elects() const override { return true; }
  Membership membership() override;
  bool record(const Membership& membership) override;
  void resign() override;
  Seconds election_time() const override { return options_.lease_ttl; }
  std::string own_address() override { return client_->own_address(); }
  std::string problem() override;

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void ask_etcd();
  void renew_leases();
  void look_for_leader();
  void try_to_lead(const LeaderAddress& self);
  std::optional<Membership> read_membership();
  bool put_membership(const Membership& membership);

  const std::unique_ptr<EtcdClient> client_;
  const EtcdLeaderOptions options_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  bool is_closing_ CONCORD_GUARDED_BY(mutex_) = false;
  bool is_asked_ CONCORD_GUARDED_BY(mutex_) = false;
  std::optional<LeaderAddress> leader_ CONCORD_GUARDED_BY(mutex_);
  std::optional<LeaderAddress> candidate_ CONCORD_GUARDED_BY(mutex_);
  Membership membership_ CONCORD_GUARDED_BY(mutex_);
  std::string problem_ CONCORD_GUARDED_BY(mutex_);
  bool is_holder_ CONCORD_GUARDED_BY(mutex_) = false;  // it has created PREFIX/leader; its lease may have expired since
  Clock::time_point lease_until_ CONCORD_GUARDED_BY(mutex_);
  int64_t lease_ CONCORD_GUARDED_BY(mutex_) = 0, record_lease_ CONCORD_GUARDED_BY(mutex_) = 0;
  int64_t revision_ CONCORD_GUARDED_BY(mutex_) = 0;  // create_revision of PREFIX/leader
  std::thread thread_;
};

}  // namespace concord
