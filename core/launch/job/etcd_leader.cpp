#include "core/launch/job/etcd_leader.h"

#include <csignal>
#include <utility>

namespace concord {
namespace {

constexpr std::chrono::milliseconds kAskEvery{200};

}  // namespace

EtcdLeader::EtcdLeader(std::unique_ptr<EtcdClient> client, EtcdLeaderOptions options)
    : client_(std::move(client)), options_(std::move(options)) {
  // Signals are for the launcher's thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

EtcdLeader::~EtcdLeader() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<LeaderAddress> EtcdLeader::leader() {
  const std::lock_guard lock(mutex_);
  is_asked_ = true;
  changed_.notify_all();
  return leader_;
}

void EtcdLeader::campaign(const LeaderAddress& self) {
  const std::lock_guard lock(mutex_);
  candidate_ = self;
}

bool EtcdLeader::leads() {
  const std::lock_guard lock(mutex_);
  return is_holder_ && Clock::now() < lease_until_;
}

Membership EtcdLeader::membership() {
  const std::lock_guard lock(mutex_);
  return membership_;
}

std::string EtcdLeader::problem() {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void EtcdLeader::run() {
  std::unique_lock lock(mutex_);
  while (!is_closing_) {
    const auto period = is_holder_ ? std::chrono::milliseconds(options_.lease_ttl) / 3 : kAskEvery;
    changed_.wait_for(lock, period, [&]() CONCORD_REQUIRES(mutex_) { return is_closing_; });
    if (is_closing_ || !(std::exchange(is_asked_, false) || is_holder_)) continue;
    lock.unlock();
    ask_etcd();
    lock.lock();
  }
}

void EtcdLeader::ask_etcd() {
  std::string problem;
  try {
    bool is_holder = false;
    {
      const std::lock_guard lock(mutex_);
      is_holder = is_holder_;
    }
    is_holder ? renew_leases() : look_for_leader();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::lock_guard lock(mutex_);
  problem_ = problem;
}

void EtcdLeader::renew_leases() {
  std::unique_lock lock(mutex_);
  const int64_t lease = lease_, record_lease = record_lease_;
  lock.unlock();
  const Clock::time_point asked = Clock::now();
  const bool is_alive = client_->keep_alive(lease);
  lock.lock();
  is_holder_ = is_holder_ && is_alive;
  if (is_alive) lease_until_ = asked + options_.lease_ttl;
  lock.unlock();
  if (is_alive) client_->keep_alive(record_lease);
}

void EtcdLeader::look_for_leader() {
  const std::optional<EtcdClient::Value> found = client_->get(options_.prefix + "/leader");
  std::optional<Membership> membership = read_membership();
  std::unique_lock lock(mutex_);
  leader_ = found ? parse_leader(found->text) : std::nullopt;
  membership_ = std::move(membership).value_or(Membership{});
  const std::optional<LeaderAddress> self = std::exchange(candidate_, std::nullopt);
  lock.unlock();
  if (!found && self) try_to_lead(*self);
}

// The record is read again: the leader before this one may have written it until its lease expired.
void EtcdLeader::try_to_lead(const LeaderAddress& self) {
  const Clock::time_point asked = Clock::now();
  const int64_t lease = client_->grant_lease(options_.lease_ttl);
  const std::optional<int64_t> revision = client_->create(options_.prefix + "/leader", to_json(self), lease);
  if (!revision) return client_->revoke_lease(lease);
  const int64_t record_lease = client_->grant_lease(options_.record_ttl);
  Membership membership = read_membership().value_or(Membership{});
  const std::lock_guard lock(mutex_);
  membership_ = std::move(membership);
  lease_ = lease;
  record_lease_ = record_lease;
  revision_ = *revision;
  lease_until_ = asked + options_.lease_ttl;
  leader_ = self;
  is_holder_ = true;
}

std::optional<Membership> EtcdLeader::read_membership() {
  const std::optional<EtcdClient::Value> found = client_->get(options_.prefix + "/membership");
  return found ? parse_membership(found->text) : std::nullopt;
}

bool EtcdLeader::record(const Membership& membership) {
  while (leads()) {
    try {
      if (put_membership(membership)) return true;
      break;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      problem_ = error.what();
    }
    std::this_thread::sleep_for(kAskEvery);
  }
  const std::lock_guard lock(mutex_);
  is_holder_ = false;  // the lease expires, and then anyone can campaign
  return false;
}

bool EtcdLeader::put_membership(const Membership& membership) {
  std::unique_lock lock(mutex_);
  const int64_t revision = revision_, lease = record_lease_;
  lock.unlock();
  if (!client_->put_if(options_.prefix + "/leader", revision, options_.prefix + "/membership", to_json(membership),
                       lease)) {
    return false;
  }
  lock.lock();
  membership_ = membership;
  return true;
}

void EtcdLeader::resign() {
  std::unique_lock lock(mutex_);
  is_closing_ = true;  // it must not campaign again
  is_holder_ = false;
  const int64_t lease = lease_, record_lease = record_lease_;
  lock.unlock();
  changed_.notify_all();
  try {
    client_->revoke_lease(record_lease);
    client_->revoke_lease(lease);
  } catch (const std::exception&) {  // they expire by themselves
  }
}

}  // namespace concord
