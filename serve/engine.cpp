#include "serve/engine.h"

#include <algorithm>
#include <new>

#include "core/error.h"

namespace hebb {
namespace {

constexpr size_t kSharedTokens = 2048;  // of texts that share a pass
constexpr size_t kPromptTokens = 512;   // of a prompt that are read in a turn
constexpr int64_t kTokensInTurn = 256;  // that a choice draws before it makes room for one that waits

}  // namespace

struct Engine::Growing {
  std::shared_ptr<Job> job;
  Choice* choice;
  std::unique_ptr<ModelState> state;         // null: a row of the batch
  size_t read = 0;                           // tokens of the prompt that have been read
  std::vector<Choice*> twins{};              // of the same job and prompt: they take the logits of its tokens, too
  int64_t drawn = 0;                         // tokens since it got its place
  std::vector<std::vector<char>> weights{};  // fast weights, while the model has others; empty: those of the beginning
};

Engine::Engine(ScoringModel& model, std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      has_fast_weights_(model.has_fast_weights()),
      joins_(model.can_join()),
      reading_mode_{FastUpdate::streaming, options.freeze_fast_weights},
      weights_(model.save_fast_weights()) {}

Engine::~Engine() = default;

void Engine::submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (end_) { return job->fail(*end_); }
  inbox_.push_back(std::move(job));
  ++open_jobs_;
  arrival_.notify_one();
}

bool Engine::is_idle() const {
  const std::lock_guard lock(mutex_);
  return open_jobs_ == 0;
}

void Engine::run(const std::function<bool()>& stop) {
  while (!stop()) {
    take_inbox();
    if (turn()) { continue; }
    std::unique_lock lock(mutex_);
    arrival_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !inbox_.empty(); });
  }
}

void Engine::take_inbox() {
  const std::lock_guard lock(mutex_);
  jobs_.insert(jobs_.end(), inbox_.begin(), inbox_.end());
  inbox_.clear();
}

bool Engine::turn() {
  drop_cancelled();
  const bool has_scored = score();
  const bool has_read = read_prompt();
  const bool has_grown = step();
  count();
  return has_scored || has_read || has_grown;
}

bool Engine::needs_state(const Choice& choice) const {
  return choice.needs_state() || has_fast_weights_ || choice.prompt().size() > kSharedTokens;
}

bool Engine::has_next(bool with_state) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const auto& job) { return needs_state(*job->waiting.front()) == with_state; });
}

std::pair<std::shared_ptr<Job>, Choice*> Engine::next_choice(bool with_state) {
  for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
    Choice* const choice = (*at)->waiting.front();
    if (needs_state(*choice) != with_state) { continue; }
    std::shared_ptr<Job> job = *at;
    job->waiting.pop_front();
    jobs_.erase(at);
    if (!job->waiting.empty()) { jobs_.push_back(job); }  // the others come first
    return {std::move(job), choice};
  }
  return {nullptr, nullptr};
}

void Engine::close(Job& job) {
  if (std::exchange(job.is_closed, true)) { return; }
  const std::lock_guard lock(mutex_);
  --open_jobs_;
}

void Engine::publish(Job& job, Choice& choice) {
  if (job.is_cancelled()) { return; }
  if (std::optional<Delta> delta = choice.take_delta()) { job.deliver(std::move(*delta)); }
  if (choice.is_done() && --job.open == 0) { close(job); }
}

void Engine::fail(Job& job, const ApiError& error) {
  job.fail(error);
  job.cancel();
  close(job);
}

void Engine::end(const ApiError& error) {
  {
    const std::lock_guard lock(mutex_);
    end_.emplace(error);
  }
  take_inbox();
  for (const auto& job : jobs_) { fail(*job, error); }
  for (const Growings* all : {&reading_, &running_, &parked_}) {
    for (const auto& growing : *all) { fail(*growing->job, error); }
  }
  drop_cancelled();
}

void Engine::drop_cancelled() {
  const auto is_gone = [&](const std::shared_ptr<Job>& job) {
    if (job->is_cancelled()) { close(*job); }
    return job->is_cancelled();
  };
  for (Growings* all : {&reading_, &running_, &parked_}) {
    all->remove_if([&](const std::unique_ptr<Growing>& growing) {
      const bool ends = is_gone(growing->job);
      if (ends) { leave(*growing); }
      return ends;
    });
  }
  std::erase_if(jobs_, is_gone);
}

bool Engine::guarded(const std::vector<Job*>& jobs, const std::function<void()>& work) {
  std::string problem;
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) { problem = "out of memory"; } catch (const std::exception& error) {
    problem = error.what();
  }
  for (Job* job : jobs) { fail(*job, ApiError(500, problem)); }
  return false;
}

bool Engine::score() {
  struct Text {
    std::shared_ptr<Job> job;
    std::vector<Choice*> choices;  // of one prompt
  };
  std::vector<Text> texts;
  size_t tokens = 0;
  bool has_worked = false;
  while (std::ssize(texts) < options_.max_batch && tokens < kSharedTokens && has_next(false)) {
    auto [job, choice] = next_choice(false);
    has_worked = true;
    if (choice->first_asked() == choice->prompt().size()) {  // nothing to read
      choice->end_without_drawing();
      publish(*job, *choice);
      continue;
    }
    tokens += choice->prompt().size();
    counts_.prompt_tokens += std::ssize(choice->prompt());
    Text& text = texts.emplace_back(Text{job, {choice}});
    while (!job->waiting.empty() && job->waiting.front()->prompt() == choice->prompt()) {
      text.choices.push_back(job->waiting.front());
      job->waiting.pop_front();
    }
    if (job->waiting.empty()) { std::erase(jobs_, job); }
  }
  if (texts.empty()) { return has_worked; }
  const auto read = [&](std::span<const Text> some, const auto& refuse) {
    std::vector<ScoringModel::Text> spans;
    for (const Text& text : some) {
      spans.push_back({text.choices.front()->prompt(), text.choices.front()->first_asked()});
    }
    std::vector<bool> is_refused(some.size());
    model_.read_texts(spans, [&](size_t text, size_t i, std::span<const double> logits) {
      if (is_refused[text]) { return; }
      if (!is_finite(logits)) {
        is_refused[text] = true;
        return refuse(some[text]);
      }
      for (Choice* choice : some[text].choices) { choice->take_prompt(i, logits); }
    });
    for (size_t i = 0; i < some.size(); ++i) {
      if (is_refused[i]) { continue; }
      for (Choice* choice : some[i].choices) {
        counts_.generated_tokens += choice->drawn();
        publish(*some[i].job, *choice);
      }
    }
  };
  std::vector<Text> again;  // what another text may have spoilt is read alone
  std::vector<Job*> jobs;
  for (const Text& text : texts) { jobs.push_back(text.job.get()); }
  guarded(jobs, [&] { read(texts, [&](const Text& text) { again.push_back(text); }); });
  for (const Text& text : again) {
    guarded({text.job.get()}, [&] { read({&text, 1}, [](const Text&) { throw not_finite(); }); });
  }
  return true;
}

void Engine::enter(Growing& growing) {
  if (!has_fast_weights_ || inside_ == &growing) { return; }
  if (inside_ != nullptr) { inside_->weights = model_.save_fast_weights(); }
  inside_ = &growing;
  model_.restore_fast_weights(growing.weights.empty() ? weights_ : growing.weights);
}

void Engine::leave(const Growing& growing) {
  std::replace(rows_.begin(), rows_.end(), &growing, static_cast<const Growing*>(nullptr));
  if (inside_ != &growing) { return; }
  inside_ = nullptr;
  model_.restore_fast_weights(weights_);
}

/// The first of those that made room whose client keeps up.
Engine::Growings::iterator Engine::first_ready() {
  return std::find_if(parked_.begin(), parked_.end(), [](const auto& growing) { return !growing->job->is_behind(); });
}

bool Engine::waits_for_room() {
  return first_ready() != parked_.end() || (streams() < options_.max_streams && has_next(true));
}

void Engine::admit() {
  while (std::ssize(running_) + reading() < options_.max_batch) {
    const bool has_new = streams() < options_.max_streams && has_next(true);
    const auto ready = first_ready();
    if (!has_new && ready == parked_.end()) { return; }
    // Those that made room and those that have not begun take turns.
    if (ready != parked_.end() && (!has_new || std::exchange(parked_next_, !parked_next_))) {
      (*ready)->drawn = 0;
      running_.splice(running_.end(), parked_, ready);
    } else {
      auto [job, choice] = next_choice(true);
      if (Growing* twin = twin_of(*job, *choice)) {
        twin->twins.push_back(choice);
        continue;
      }
      if (!guarded({job.get()}, [&, of = job, own = choice] {
            reading_.push_back(std::make_unique<Growing>(Growing{of, own, model_.new_state()}));
          })) {
        return;
      }
    }
  }
}

int64_t Engine::reading() const {
  int64_t choices = 0;
  for (const auto& growing : reading_) { choices += 1 + std::ssize(growing->twins); }
  return choices;
}

/// The choice that reads this one's prompt, and has not passed what this one asks for.
Engine::Growing* Engine::twin_of(const Job& job, const Choice& choice) {
  if (!joins_) { return nullptr; }  // states of fast weights have no copies
  const auto at = std::find_if(reading_.begin(), reading_.end(), [&](const auto& growing) {
    return growing->job.get() == &job && growing->choice->prompt() == choice.prompt() &&
           growing->read <= choice.first_asked();
  });
  return at == reading_.end() ? nullptr : at->get();
}

/// Those that have read the same prompt go on from copies of its state.
void Engine::part_from_twins(Growing& growing) {
  for (Choice* twin : std::exchange(growing.twins, {})) {
    if (twin->is_done()) { continue; }
    const StateRow row{growing.state.get()};
    running_.push_back(std::make_unique<Growing>(Growing{growing.job, twin, model_.join({&row, 1}, false)}));
  }
}

bool Engine::read_prompt() {
  admit();
  if (reading_.empty()) { return false; }
  Growing& growing = *reading_.front();
  Choice& choice = *growing.choice;
  const size_t n = choice.prompt().size(), count = std::min(n - growing.read, kPromptTokens);
  const size_t first = std::max(choice.first_asked(), growing.read) - growing.read;
  std::vector<Choice*> choices = growing.twins;
  choices.insert(choices.begin(), &choice);
  const bool is_good = guarded({growing.job.get()}, [&] {
    enter(growing);
    model_.read_each(std::span(choice.prompt()).subspan(growing.read, count), first, *growing.state, reading_mode_,
                     [&](size_t i, std::span<const double> logits) {
                       for (Choice* each : choices) { each->take_prompt(growing.read + i, logits); }
                     });
    growing.read += count;
    counts_.prompt_tokens += static_cast<int64_t>(count);
    for (Choice* each : choices) {
      if (growing.read == n && each->first_asked() == n) { each->end_without_drawing(); }
      counts_.generated_tokens += each->drawn();
      publish(*growing.job, *each);
    }
    if (growing.read == n) { part_from_twins(growing); }
  });
  if (!is_good || choice.is_done()) {
    leave(growing);
    reading_.pop_front();
  } else {
    Growings& to = growing.read == n ? running_ : reading_;  // the prompts that are read take turns
    to.splice(to.end(), reading_, reading_.begin());
  }
  return true;
}

bool Engine::step() {
  for (auto at = running_.begin(); at != running_.end();) {
    const auto next = std::next(at);
    if ((*at)->job->is_behind()) { park(at); }
    at = next;
  }
  if (running_.empty()) {
    batch_.reset();
    rows_.clear();
    return false;
  }
  ++counts_.steps;
  joins_ ? step_together() : step_apart();
  make_room();
  return true;
}

Engine::Growings::iterator Engine::settle(Growings::iterator at, bool is_good) {
  Growing& growing = **at;
  ++growing.drawn;
  ++counts_.generated_tokens;
  if (is_good && !growing.choice->is_done()) { return std::next(at); }
  leave(growing);
  return running_.erase(at);
}

void Engine::step_apart() {
  for (auto at = running_.begin(); at != running_.end();) {
    Growing& growing = **at;
    at = settle(at, guarded({growing.job.get()}, [&] {
                  enter(growing);
                  const int32_t token = growing.choice->last_token();
                  growing.choice->take(model_.read({&token, 1}, *growing.state, reading_mode_));
                  publish(*growing.job, *growing.choice);
                }));
  }
}

void Engine::step_together() {
  std::vector<Job*> jobs;
  std::vector<int32_t> tokens;
  for (const auto& growing : running_) {
    jobs.push_back(growing->job.get());
    tokens.push_back(growing->choice->last_token());
  }
  std::vector<double> logits;
  if (!guarded(jobs, [&] {
        gather();
        logits = model_.read_next(tokens, *batch_, reading_mode_);
      })) {
    running_.clear();
    batch_.reset();
    rows_.clear();
    return;
  }
  const size_t vocab = logits.size() / tokens.size();
  size_t row = 0;
  for (auto at = running_.begin(); at != running_.end(); ++row) {
    Growing& growing = **at;
    at = settle(at, guarded({growing.job.get()}, [&] {
                  const auto own = std::span<const double>(logits).subspan(row * vocab, vocab);
                  if (!is_finite(own)) { throw not_finite(); }
                  growing.choice->take(own);
                  publish(*growing.job, *growing.choice);
                }));
  }
}

/// Makes the batch one of what is running, in its order.
void Engine::gather() {
  std::vector<StateRow> rows;
  std::vector<const Growing*> order;
  for (const auto& growing : running_) {
    const auto row = std::find(rows_.begin(), rows_.end(), growing.get()) - rows_.begin();
    rows.push_back(growing->state != nullptr ? StateRow{growing->state.get()} : StateRow{batch_.get(), row});
    order.push_back(growing.get());
  }
  if (order == rows_) { return; }
  std::unique_ptr<ModelState> joined = rows.size() == 1 && running_.front()->state != nullptr
                                           ? std::move(running_.front()->state)
                                           : model_.join(rows, true);
  for (const auto& growing : running_) { growing->state.reset(); }
  batch_ = std::move(joined);
  rows_ = std::move(order);
}

/// Takes a choice out of those that grow, with a state of its own.
void Engine::park(Growings::iterator at) {
  Growing& growing = **at;
  const bool is_good = guarded({growing.job.get()}, [&] {
    if (growing.state != nullptr) { return; }
    const StateRow row{batch_.get(), std::find(rows_.begin(), rows_.end(), &growing) - rows_.begin()};
    growing.state = model_.join({&row, 1}, false);
    std::replace(rows_.begin(), rows_.end(), static_cast<const Growing*>(&growing),
                 static_cast<const Growing*>(nullptr));
  });
  if (is_good) {
    parked_.splice(parked_.end(), running_, at);
  } else {
    leave(growing);
    running_.erase(at);
  }
}

void Engine::make_room() {
  if (running_.empty() || std::ssize(running_) + reading() < options_.max_batch || !waits_for_room()) { return; }
  const auto longest = std::max_element(running_.begin(), running_.end(),
                                        [](const auto& a, const auto& b) { return a->drawn < b->drawn; });
  if ((*longest)->drawn >= kTokensInTurn) { park(longest); }
}

void Engine::count() {
  counts_.streams = streams();
  counts_.waiting = 0;
  for (const auto& job : jobs_) { counts_.waiting += std::ssize(job->waiting); }
  const std::lock_guard lock(mutex_);
  shown_ = counts_;
}

Engine::Counts Engine::counts() const {
  const std::lock_guard lock(mutex_);
  return shown_;
}

}  // namespace hebb
