// Tells the launchers of a job which of them leads.
//
// FixedLeader: always the one of machine 0. EtcdLeader (etcd_leader.h): the one that holds a lease, so that another one
// leads after its machine is lost.
//
// Threads: same as JobRun. Only record and resign wait, for a bounded time.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/launch/job/membership.h"

namespace concord {

class LeaderStore {
 public:
  using Seconds = std::chrono::duration<double>;
  virtual ~LeaderStore() = default;

  // The leader that was last seen; nullopt if there is none.
  virtual std::optional<LeaderAddress> leader() = 0;
  // Asks to lead, with an address at which this launcher listens; leads() becomes true if it does.
  virtual void campaign(const LeaderAddress& self) = 0;
  // Whether this launcher leads. Once this is false, another one may.
  virtual bool leads() = 0;
  // Whether another launcher can lead after this one.
  virtual bool elects() const = 0;
  // The last record of any leader.
  virtual Membership membership() = 0;
  // Records |membership| before its attempt starts. Returns false if this launcher no longer leads. Waits.
  virtual bool record(const Membership& membership) = 0;
  // Erases all records, because the job is over. Waits.
  virtual void resign() = 0;
  // Time within which a lost leader is replaced.
  virtual Seconds election_time() const = 0;
  // Address of this machine as the store sees it; empty if not known yet.
  virtual std::string own_address() = 0;
  // Why the store cannot be reached; empty if it can.
  virtual std::string problem() = 0;
};

// The launcher of machine 0 leads, at a fixed address; the job ends when it is lost, unless it is started again there.
class FixedLeader final : public LeaderStore {
 public:
  FixedLeader(bool is_leader, std::string address, int port)
      : is_leader_(is_leader), leader_{.launcher = 0, .address = std::move(address), .port = port, .who = ""} {}
  std::optional<LeaderAddress> leader() override { return leader_; }
  void campaign(const LeaderAddress&) override {}
  bool leads() override { return is_leader_; }
  bool elects() const override { return false; }
  Membership membership() override { return {}; }
  bool record(const Membership&) override { return true; }
  void resign() override {}
  Seconds election_time() const override { return Seconds(0); }
  std::string own_address() override { return leader_.address; }
  std::string problem() override { return ""; }

 private:
  const bool is_leader_;
  const LeaderAddress leader_;
};

}  // namespace concord
