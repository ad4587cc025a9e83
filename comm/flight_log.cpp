#include "comm/flight_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "comm/frames.h"
#include "core/error.h"
#include "core/sign_of_life.h"

namespace hebb {
namespace {

/// A short printable word. Errors: CommError.
std::string read_word(const Json& frame, std::string_view key, size_t shortest) {
  const std::string& word = frame_text(frame, key);
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (word.size() < shortest || word.size() > 64 || !std::all_of(word.begin(), word.end(), is_plain)) {
    throw CommError("control connection", "a frame whose " + std::string(key) + " is no word");
  }
  return word;
}

}  // namespace

std::string Beat::place() const {
  std::string text = step >= 0 ? fmt::format("step {:d}, {}", step, phase) : phase;
  if (micro_batch >= 0) { text += fmt::format(", micro-batch {:d}", micro_batch); }
  return text;
}

std::string Beat::collective_text() const {
  return fmt::format("{} {:d}{}", collective, in_step,
                     step >= 0 ? fmt::format(" of step {:d}", step) : " of the start");
}

Json beat_frame(const Beat& beat) {
  return Json::object({{"kind", "beat"},
                       {"ticks", beat.ticks},
                       {"step", beat.step},
                       {"phase", beat.phase},
                       {"micro_batch", beat.micro_batch},
                       {"entered", beat.entered},
                       {"finished", beat.finished},
                       {"in_step", beat.in_step},
                       {"collective", beat.collective}});
}

Beat read_beat(const Json& frame) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Beat beat;
  beat.ticks = frame_integer(frame, "ticks", 0, kMost);
  beat.step = frame_integer(frame, "step", -1, kMost);
  beat.micro_batch = frame_integer(frame, "micro_batch", -1, kMost);
  beat.phase = read_word(frame, "phase", 1);
  beat.entered = frame_integer(frame, "entered", 0, kMost);
  beat.finished = frame_integer(frame, "finished", 0, beat.entered);
  beat.in_step = frame_integer(frame, "in_step", 0, beat.entered);
  beat.collective = read_word(frame, "collective", 0);
  return beat;
}

void FlightLog::at(int64_t step, std::string_view phase, int64_t micro_batch) {
  const std::lock_guard lock(mutex_);
  if (first_step_ < 0) { first_step_ = step; }
  if (step != beat_.step) { before_step_ = beat_.entered; }
  beat_.step = step;
  beat_.phase = phase;
  beat_.micro_batch = micro_batch;
  ++beat_.ticks;
}

void FlightLog::tick() {
  const std::lock_guard lock(mutex_);
  ++beat_.ticks;
}

int64_t FlightLog::begin(std::string_view kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++beat_.ticks;
  if (last_.size() == kKept) { last_.erase(last_.begin()); }
  last_.push_back({.number = ++beat_.entered,
                   .kind = std::string(kind),
                   .bytes = bytes,
                   .step = beat_.step,
                   .micro_batch = beat_.micro_batch,
                   .begun = now()});
  return beat_.entered;
}

void FlightLog::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  ++beat_.ticks;
  beat_.finished = number;
  for (Collective& c : last_) {
    if (c.number == number) { c.ended = now(); }
  }
}

void FlightLog::set_file(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  file_ = path;
}

fs::path FlightLog::file() const {
  const std::lock_guard lock(mutex_);
  return file_;
}

Beat FlightLog::beat() const {
  const std::lock_guard lock(mutex_);
  Beat beat = beat_;
  if (beat.ticks > 0) { beat.ticks += signs_of_life(); }  // those before the first one are of no rank yet
  beat.in_step = beat.entered - before_step_;
  if (!last_.empty()) { beat.collective = last_.back().kind; }
  return beat;
}

Json FlightLog::collectives() const {
  const std::lock_guard lock(mutex_);
  Json list = Json::array();
  for (const Collective& c : last_) {
    list.push(Json::object({{"number", c.number},
                            {"kind", c.kind},
                            {"bytes", c.bytes},
                            {"step", c.step},
                            {"micro_batch", c.micro_batch},
                            {"state", c.ended < 0 ? "started" : "finished"},
                            {"begun", c.begun},
                            {"ended", c.ended < 0 ? Json() : Json(c.ended)}}));
  }
  return list;
}

int64_t FlightLog::steps() const {
  const std::lock_guard lock(mutex_);
  return beat_.step - first_step_;
}

bool FlightLog::has_begun() const {
  const std::lock_guard lock(mutex_);
  return first_step_ >= 0;
}

}  // namespace hebb
