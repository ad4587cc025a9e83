#include "comm/watch.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/log.h"

namespace hebb {
namespace {

constexpr int kComm = static_cast<int>(ExitCode::kComm);

Json fail_frame(int code, int rank, const std::string& text) {
  return Json::object({{"kind", "fail"}, {"code", code}, {"rank", rank}, {"text", text.substr(0, kLargestHello)}});
}

}  // namespace

Watch::Watch(ControlLinks links, int rank, const WatchOptions& options, FlightLog& log)
    : rank_(rank),
      options_(options),
      log_(log),
      members_(std::move(links.members)),
      time_(options.lost_seconds / 4, options.clock) {
  for (auto& connection : links.connections) { peers_.push_back({.connection = std::move(connection)}); }
  thread_ = std::thread([this] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
    run();
  });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  thread_.join();
}

void Watch::started() {
  log_.tick();
  const std::lock_guard lock(mutex_);
  is_started_ = true;
}

void Watch::fail(ExitCode code, const std::string& text) {
  std::unique_lock lock(mutex_);
  own_failure_ = Cause{static_cast<int>(code), rank_, text};
  for (;;) { changed_.wait(lock); }  // the watch ends the process
}

void Watch::finish() {
  std::unique_lock lock(mutex_);
  wants_end_ = true;
  changed_.wait(lock, [this] { return is_over_; });
}

void Watch::run() {
  try {
    while (look_around()) {}
  } catch (const std::exception& error) {
    conclude({static_cast<int>(ExitCode::kOther), rank_,
              members_[static_cast<size_t>(rank_)].name() + ": watch: " + error.what()});
  }
}

/// One round. Whether another one follows.
bool Watch::look_around() {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) { return false; }
  }
  wait_for_frames();
  now_ = time_.now();
  take_frames();
  hear_requests();
  send_beats();
  if (end_is_reached()) {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
    return false;
  }
  look_for_lost();
  if (is_hub()) { look_for_stalls(); }
  if (suspected_ && now_ >= conclude_at_) { conclude(*suspected_); }
  return true;
}

void Watch::wait_for_frames() {
  std::vector<pollfd> polled;
  for (const Peer& p : peers_) {
    if (p.connection != nullptr && p.connection->is_open()) { polled.push_back(p.connection->polled()); }
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp(options_.lost_seconds * 20, 5.0, 50.0)));
}

void Watch::take_frames() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& p = peers_[i];
    if (p.connection == nullptr) { continue; }
    p.connection->flush();
    p.connection->receive();
    try {
      while (const std::optional<Json> frame = p.connection->next()) { take_frame(i, *frame); }
    } catch (const CommError& error) {
      conclude({kComm, static_cast<int>(i), members_[i].name() + ": " + error.what()});
    }
  }
}

void Watch::take_frame(size_t rank, const Json& frame) {
  Peer& p = peers_[rank];
  p.heard = now_;
  const std::string& kind = frame_kind(frame);
  if (kind == "beat") {
    note_beat(p, read_beat(frame));
  } else if (kind == "bye") {
    p.is_done = true;
    p.moved = now_;
    got_bye_ = true;
  } else if (kind == "fail") {
    take_fail(rank, frame);
  } else {
    throw CommError("control connection", "unexpected frame " + kind);
  }
}

void Watch::note_beat(Peer& p, const Beat& beat) {
  if (!p.beat || p.beat->ticks != beat.ticks) { p.moved = now_; }
  p.heard = now_;
  p.beat = beat;
}

void Watch::take_fail(size_t rank, const Json& frame) {
  const int64_t lowest = is_hub() ? static_cast<int64_t>(rank) : 0;  // a rank tells of itself, rank 0 of all
  const int64_t highest = is_hub() ? lowest : static_cast<int64_t>(members_.size()) - 1;
  Cause cause{frame_exit_code(frame), static_cast<int>(frame_integer(frame, "rank", lowest, highest)),
              frame_text(frame, "text")};
  if (!is_hub()) { conclude(cause, true); }
  cause.text = members_[rank].name() + ": " + cause.text;
  suspect(cause);
}

void Watch::suspect(const Cause& cause) {
  // While ranks start, an error of all is rank 0's to report: it clears what it has begun in the run folder first.
  if (cause.code != kComm && (cause.rank == rank_ || log_.has_begun())) { conclude(cause); }
  if (suspected_) { return; }
  suspected_ = cause;
  conclude_at_ = now_ + 1;
}

void Watch::hear_requests() {
  const std::lock_guard lock(mutex_);
  if (!is_started_ && options_.start_seconds > 0 && now_ > options_.start_seconds) {
    is_started_ = true;
    own_failure_ = Cause{
        kComm, rank_, "MPI or NCCL did not start within " + seconds_text(options_.start_seconds) + " after ranks met"};
  }
  if (own_failure_) {
    Cause cause = *std::exchange(own_failure_, std::nullopt);
    if (is_hub()) {
      // An error of the start is that of all ranks; later ones are those of a rank.
      if (log_.has_begun()) { cause.text = members_[0].name() + ": " + cause.text; }
      suspect(cause);
    } else {
      peers_[0].connection->send(fail_frame(cause.code, rank_, cause.text));
      suspected_ = cause;
      conclude_at_ = now_ + 3;  // rank 0 answers before, or is gone
    }
  }
  if (wants_end_ && !said_bye_) {
    said_bye_ = true;
    if (is_hub()) {
      peers_[0].is_done = true;
      peers_[0].moved = now_;
    } else {
      peers_[0].connection->send(Json::object({{"kind", "bye"}}));
    }
  }
}

void Watch::send_beats() {
  const Beat beat = log_.beat();
  if (is_hub()) { note_beat(peers_[0], beat); }
  if (now_ < next_beat_) { return; }
  next_beat_ = now_ + options_.lost_seconds / 10;
  for (Peer& p : peers_) {
    if (p.connection != nullptr && p.connection->is_open()) { p.connection->send(beat_frame(beat)); }
  }
}

/// Rank 0 tells all once all have come; the others wait for that.
bool Watch::end_is_reached() {
  if (!is_hub()) { return said_bye_ && got_bye_; }
  if (!std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.is_done; })) { return false; }
  for (Peer& p : peers_) {
    if (p.connection != nullptr) { p.connection->send(Json::object({{"kind", "bye"}})); }
  }
  return true;
}

void Watch::look_for_lost() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& p = peers_[i];
    if (p.connection == nullptr || (is_hub() && p.is_done)) { continue; }
    const bool is_silent = now_ - p.heard > options_.lost_seconds;
    if (p.connection->is_open() && !is_silent) { continue; }
    if (suspected_ && suspected_->rank == rank_ && suspected_->code != kComm) { conclude(*suspected_); }
    const std::string how =
        is_silent ? "no heartbeat for " + seconds_text(options_.lost_seconds) : "its connection closed";
    conclude({kComm, static_cast<int>(i), members_[i].name() + ": lost: " + how + seen_text(i) + waiting_text(i)});
  }
}

/// A rank stands still if it is in no collective and does not come forward, or if all wait for each other. A rank that
/// is done has come forward then: others may have left their last collective without a beat that says so. Before its
/// first tick a rank starts to communicate, for which it has a limit of its own (start_seconds).
void Watch::look_for_stalls() {
  const auto has_stopped = [&](const Peer& p) {
    const bool has_started = p.is_done || (p.beat && p.beat->ticks > 0);
    return has_started && now_ - p.moved > options_.stall_seconds;
  };
  const auto entered = [](const Peer& p) { return p.beat ? p.beat->entered : 0; };
  bool all_wait = true;
  size_t last = 0;  // the rank that has entered the fewest collectives
  for (size_t r = 0; r < peers_.size(); ++r) {
    const Peer& p = peers_[r];
    const bool waits = p.is_done || p.is_waiting();
    if (has_stopped(p) && !waits) {
      conclude({kComm, static_cast<int>(r),
                members_[r].name() + ": stalled: no progress for " + seconds_text(options_.stall_seconds) +
                    seen_text(r) + waiting_text()});
    }
    all_wait = all_wait && waits && has_stopped(p);
    if (!p.is_done && (peers_[last].is_done || entered(p) < entered(peers_[last]))) { last = r; }
  }
  if (!all_wait || peers_[last].is_done) { return; }
  conclude({kComm, static_cast<int>(last),
            "all ranks wait for each other, and none came forward for " + seconds_text(options_.stall_seconds) + "; " +
                members_[last].name() + " has entered the fewest collectives" + waiting_text()});
}

std::string Watch::seen_text(size_t rank) const {
  const std::optional<Beat>& beat = peers_[rank].beat;
  return beat ? "; last seen in " + beat->place() : "";
}

/// "; ranks 0-4, 6 wait in all-to-all 14 of step 812 (1.4 s ago)", as far as rank 0 has heard of those that live.
std::string Watch::waiting_text(std::optional<size_t> lost) const {
  struct Group {
    std::string where;
    std::vector<int> ranks;
    double age = 0;  // of the oldest beat
  };
  std::vector<Group> groups;
  for (size_t r = 0; is_hub() && r < peers_.size(); ++r) {
    const Peer& p = peers_[r];
    const bool is_gone = r == lost || (p.connection != nullptr && !p.connection->is_open());
    if (is_gone || p.is_done || !p.is_waiting()) { continue; }
    const std::string where = p.beat->collective_text();
    auto it = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.where == where; });
    if (it == groups.end()) { it = groups.insert(it, {where, {}}); }
    it->ranks.push_back(static_cast<int>(r));
    it->age = std::max(it->age, now_ - p.heard);
  }
  std::string text;
  for (const Group& g : groups) {
    const bool is_one = g.ranks.size() == 1;
    text += (is_one ? "; rank " : "; ranks ") + rank_list(g.ranks) + (is_one ? " waits in " : " wait in ") + g.where +
            fmt::format(" ({:.1f} s ago)", g.age);
  }
  return text;
}

void Watch::conclude(const Cause& cause, bool is_reported) {
  if (!is_reported) {
    // Ranks without rank 0 say who they are: there may be many of them.
    const std::string who = is_hub() ? "" : members_[static_cast<size_t>(rank_)].name() + ": ";
    std::fprintf(stderr, "%serror: %s\n", who.c_str(), cause.text.c_str());
    std::fflush(stderr);
  }
  const Json frame = fail_frame(cause.code, cause.rank, cause.text);
  for (Peer& p : peers_) {
    if (is_hub() && p.connection != nullptr && p.connection->is_open()) { p.connection->send(frame); }
  }
  write_flight_record(cause);
  write_log(cause);
  const double last = time_.now() + 1;
  const auto is_sent = [](const Peer& p) { return p.connection == nullptr || !p.connection->wants_to_write(); };
  while (time_.now() < last && !std::all_of(peers_.begin(), peers_.end(), is_sent)) {
    wait_for_frames();
    for (Peer& p : peers_) {
      if (p.connection != nullptr) { p.connection->flush(); }
    }
  }
  std::fflush(stdout);
  ::_exit(cause.code);
}

void Watch::write_log(const Cause& cause) const {
  try {
    const fs::path file = log_.file();
    if (!file.empty() && fs::exists(file)) { LogFile(file, rank_).line(LogLevel::error, cause.text); }
  } catch (const std::exception&) {}  // the cause is what matters
}

/// Where an error of a rank ends the start there is nothing to tell.
void Watch::write_flight_record(const Cause& cause) const {
  if (cause.code != kComm && !log_.has_begun()) { return; }
  try {
    fs::create_directories(options_.logs);
    const std::string name = fmt::format("flight_{:05}.json", rank_);
    const Json record = Json::object({{"rank", rank_},
                                      {"name", members_[static_cast<size_t>(rank_)].name()},
                                      {"cause", cause.text},
                                      {"code", cause.code},
                                      {"steps", log_.steps()},
                                      {"last", beat_frame(log_.beat())},
                                      {"collectives", log_.collectives()}});
    write_file_atomic(options_.logs / name, record.dump(1) + "\n");
  } catch (const std::exception&) {}  // the cause is what matters
}

}  // namespace hebb
