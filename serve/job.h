#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "serve/api_error.h"
#include "serve/choice.h"

namespace hebb {

/// A request between the connection that has read it and the engine that answers it. The engine's thread alone touches
/// the choices; what they give goes through a mailbox.
class Job {
 public:
  Job(const CompletionRequest& request, const std::shared_ptr<const Tokenizer>& tokenizer);

  std::vector<std::unique_ptr<Choice>> choices;
  std::deque<Choice*> waiting;  // that the engine has not begun
  size_t open = 0;              // that are not done
  bool is_closed = false;       // the engine has nothing more to do with it

  /// The engine: something that a choice gave, or why there is no answer.
  void deliver(Delta delta);
  void fail(const ApiError& error);

  /// The connection: what has come, all of it; waits for something a fraction of a second. Errors: the ApiError of
  /// fail(), once.
  std::vector<Delta> receive();
  /// Whether all choices are done and received.
  bool is_complete() const;
  /// The client has left.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }
  /// Whether much has come that the connection has not received: its client reads slowly.
  bool is_behind() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrival_;
  std::vector<Delta> mail_;
  std::optional<ApiError> failure_;
  size_t unfinished_;  // choices whose last delta has not been received
  std::atomic<bool> is_cancelled_ = false;
};

}  // namespace hebb
