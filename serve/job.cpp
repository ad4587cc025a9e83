#include "serve/job.h"

#include <algorithm>
#include <chrono>

namespace hebb {

namespace {

constexpr size_t kUnread = 256;  // deltas that wait for a client before its choices do

}  // namespace

Job::Job(const CompletionRequest& request, const std::shared_ptr<const Tokenizer>& tokenizer)
    : open(request.prompts.size()), unfinished_(request.prompts.size()) {
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    choices.push_back(std::make_unique<Choice>(request, i, tokenizer));
    waiting.push_back(choices.back().get());
  }
}

void Job::deliver(Delta delta) {
  const std::lock_guard lock(mutex_);
  mail_.push_back(std::move(delta));
  arrival_.notify_one();
}

void Job::fail(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  failure_.emplace(error);
  arrival_.notify_one();
}

std::vector<Delta> Job::receive() {
  std::unique_lock lock(mutex_);
  arrival_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !mail_.empty() || failure_; });
  if (mail_.empty() && failure_) {
    unfinished_ = 0;
    throw ApiError(*failure_);
  }
  std::vector<Delta> mail = std::exchange(mail_, {});
  unfinished_ -= static_cast<size_t>(
      std::count_if(mail.begin(), mail.end(), [](const Delta& delta) { return !delta.finish_reason.empty(); }));
  return mail;
}

bool Job::is_behind() const {
  const std::lock_guard lock(mutex_);
  return mail_.size() > kUnread;
}

bool Job::is_complete() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

}  // namespace hebb
