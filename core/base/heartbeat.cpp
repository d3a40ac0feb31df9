#include "core/base/heartbeat.h"

#include <algorithm>

namespace concord {

void AdaptiveTimeout::add(double seconds) {
  last_.push_back(seconds);
  if (last_.size() > kRemembered) last_.pop_front();
}

std::optional<double> AdaptiveTimeout::seconds() const {
  if (last_.empty()) return std::nullopt;
  const double longest = *std::max_element(last_.begin(), last_.end());
  if (last_.size() < kMinDurations) return std::max(kFirstMinSeconds, kFirstFactor * longest);
  return std::max(kMinSeconds, kFactor * longest);
}

Heartbeat::Heartbeat(int64_t local_rank) : board_(JobBoard::of_launcher()) {
  if (board_ && local_rank >= 0 && local_rank < board_->ranks()) notes_ = &board_->rank(static_cast<int>(local_rank));
}

void Heartbeat::enter(RankPhase phase) {
  phase_ = phase;
  last_ = Clock::now();
  publish();
}

void Heartbeat::beat() {
  const Clock::time_point now = Clock::now();
  limits_[static_cast<size_t>(phase_)].add(std::chrono::duration<double>(now - last_).count());
  last_ = now;
  publish();
}

void Heartbeat::step_done(int64_t step) {
  if (notes_ != nullptr) {
    notes_->step = step;
    notes_->last_step_at = monotonic_nanoseconds();
  }
  beat();
}

void Heartbeat::saved(int64_t step, bool is_kept) {
  if (notes_ == nullptr) return;
  notes_->saved_step = step;
  if (is_kept) notes_->kept_step = step;
}

void Heartbeat::begins_to_write(int64_t step, const std::string& folder) {
  if (notes_ == nullptr || folder.size() >= notes_->writes_to.size()) return;
  notes_->writes_step = -1;
  std::ranges::copy(folder, notes_->writes_to.begin());
  notes_->writes_to[folder.size()] = 0;
  notes_->writes_step = step;
}

std::optional<int64_t> Heartbeat::begin_replacement(int64_t most) {
  if (notes_ == nullptr || notes_->saved_step < 0 || notes_->replaced >= most) return std::nullopt;
  return ++notes_->replaced;
}

void Heartbeat::publish() {
  if (notes_ == nullptr) return;
  const bool is_limited =
      phase_ == RankPhase::training || phase_ == RankPhase::evaluating || phase_ == RankPhase::saving;
  const std::optional<double> limit = limits_[static_cast<size_t>(phase_)].seconds();
  notes_->phase = static_cast<int64_t>(phase_);
  notes_->limit = is_limited && limit ? static_cast<int64_t>(*limit * 1e9) : 0;
  ++notes_->beats;
}

}  // namespace concord
