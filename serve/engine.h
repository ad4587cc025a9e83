#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "eval/scoring_model.h"
#include "serve/job.h"

namespace hebb {

struct EngineOptions {
  int64_t max_batch = 16;            // choices that grow in one pass, and texts that share one
  int64_t max_streams = 64;          // choices that have a state
  bool freeze_fast_weights = false;  // reading moves no fast weights
};

/// Answers jobs with one model, on the thread that calls run(). Choices take turns: none waits for another one's end.
/// Each starts from an empty state and the fast weights that the model had in the beginning.
///
/// A turn is one pass over prompts that need no state, then a piece of one prompt whose text goes on, then a token of
/// every choice that grows: one pass over all of them as rows of a batch, which they join and leave between turns; with
/// fast weights a pass for each. Jobs are served round robin. Where more choices grow than fit a batch, one that has
/// had a number of tokens makes room; one whose client reads slowly does so too, until it has read. Choices of a job
/// that get their places while their common prompt is read share its passes.
class Engine {
 public:
  Engine(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options);
  ~Engine();

  /// From any thread.
  void submit(std::shared_ptr<Job> job);
  /// Works until stop() is true, which is asked between turns and ten times a second when there is no work.
  void run(const std::function<bool()>& stop);
  /// Whether no job is left.
  bool is_idle() const;
  /// What is being done, from any thread.
  struct Counts {
    int64_t streams = 0, waiting = 0;                            // choices with a state, and those not begun
    int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0;  // since the beginning; passes over what grows
  };
  Counts counts() const;
  /// Fails all jobs, those that are submitted from now on too. Call it when run() has returned for the last time.
  void end(const ApiError& error);

 private:
  struct Growing;  // a choice that has been begun
  using Growings = std::list<std::unique_ptr<Growing>>;

  bool turn();
  void take_inbox();
  void drop_cancelled();
  bool score();
  void admit();
  Growing* twin_of(const Job& job, const Choice& choice);
  void part_from_twins(Growing& growing);
  bool read_prompt();
  bool step();
  void step_apart();
  void step_together();
  void gather();
  void park(Growings::iterator at);
  bool waits_for_room();
  void make_room();
  void count();
  int64_t reading() const;  // choices, whose prompts are being read
  int64_t streams() const { return reading() + std::ssize(running_) + std::ssize(parked_); }
  Growings::iterator first_ready();

  bool needs_state(const Choice& choice) const;
  /// The next choice in turn that needs a state, or one that does not; a null choice: there is none.
  std::pair<std::shared_ptr<Job>, Choice*> next_choice(bool with_state);
  bool has_next(bool with_state) const;
  void enter(Growing& growing);
  void leave(const Growing& growing);
  /// What becomes of a choice that was to grow: it stays, or is done with. Returns the next one.
  Growings::iterator settle(Growings::iterator at, bool is_good);
  void publish(Job& job, Choice& choice);
  void fail(Job& job, const ApiError& error);
  void close(Job& job);
  /// Runs `work`; what it throws becomes the failure of the jobs.
  bool guarded(const std::vector<Job*>& jobs, const std::function<void()>& work);

  ScoringModel& model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const EngineOptions options_;
  const bool has_fast_weights_, joins_;
  const ScoringModel::Reading reading_mode_;
  std::vector<std::vector<char>> weights_;  // fast weights that every choice starts from

  mutable std::mutex mutex_;
  std::condition_variable arrival_;
  std::deque<std::shared_ptr<Job>> inbox_;
  size_t open_jobs_ = 0;
  Counts shown_;
  std::optional<ApiError> end_;  // why there is no answer any more

  std::deque<std::shared_ptr<Job>> jobs_;  // with choices that are waiting, in turn
  Growings reading_, running_, parked_;
  bool parked_next_ = false;
  Growing* inside_ = nullptr;  // whose fast weights the model has
  std::unique_ptr<ModelState> batch_;
  std::vector<const Growing*> rows_;  // of the batch; null: is done with
  Counts counts_;
};

}  // namespace hebb
