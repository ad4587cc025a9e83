#include "comm/flight_log.h"

#include <fmt/core.h>

#include "comm/frames.h"

namespace hebb {

void FlightLog::at(int64_t step, std::string_view phase, int64_t micro_batch) {
  const std::lock_guard lock(mutex_);
  if (first_step_ < 0) { first_step_ = step; }
  if (step != step_) { before_step_ = entered_; }
  step_ = step;
  phase_ = phase;
  micro_batch_ = micro_batch;
  ++ticks_;
}

void FlightLog::tick() {
  const std::lock_guard lock(mutex_);
  ++ticks_;
}

int64_t FlightLog::begin(std::string_view kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++ticks_;
  if (last_.size() == kKept) { last_.erase(last_.begin()); }
  last_.push_back({.number = ++entered_,
                   .kind = std::string(kind),
                   .bytes = bytes,
                   .step = step_,
                   .micro_batch = micro_batch_,
                   .begun = now()});
  return entered_;
}

void FlightLog::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  ++ticks_;
  finished_ = number;
  for (Collective& c : last_) {
    if (c.number == number) { c.ended = now(); }
  }
}

Json FlightLog::beat() const {
  const std::lock_guard lock(mutex_);
  return Json::object({{"kind", "beat"},
                       {"ticks", ticks_},
                       {"step", step_},
                       {"phase", phase_},
                       {"micro_batch", micro_batch_},
                       {"entered", entered_},
                       {"finished", finished_},
                       {"in_step", entered_ - before_step_},
                       {"collective", last_.empty() ? "" : last_.back().kind}});
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
  return step_ - first_step_;
}

bool FlightLog::has_begun() const {
  const std::lock_guard lock(mutex_);
  return first_step_ >= 0;
}

std::string place_text(const Json& beat) {
  const int64_t step = frame_integer(beat, "step"), micro_batch = frame_integer(beat, "micro_batch");
  const std::string& phase = frame_text(beat, "phase");
  std::string text = step >= 0 ? fmt::format("step {:d}, {}", step, phase) : phase;
  if (micro_batch >= 0) { text += fmt::format(", micro-batch {:d}", micro_batch); }
  return text;
}

bool is_waiting(const Json& beat) { return frame_integer(beat, "entered") > frame_integer(beat, "finished"); }

std::string collective_text(const Json& beat) {
  const int64_t step = frame_integer(beat, "step");
  return fmt::format("{} {:d}{}", frame_text(beat, "collective"), frame_integer(beat, "in_step"),
                     step >= 0 ? fmt::format(" of step {:d}", step) : " of the start");
}

}  // namespace hebb
