#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hebb {

/// One producer, many workers, one consumer (the calling thread) that sees the items in the order of
/// production. The number and the size of the items under way are limited, so memory is, too.
/// An exception of the producer or of a worker is rethrown by the consumer when its turn in the order
/// comes, so which error is reported does not depend on timing.
template <class Item> class OrderedPipeline {
 public:
  struct Limits {
    size_t items;    // under way at most
    uint64_t bytes;  // of them; one item may always be
  };
  /// Fills the next item; false at the end.
  using Produce = std::function<bool(Item&)>;
  /// Made once per worker thread, so that it can own scratch memory.
  using Work = std::function<void(Item&)>;
  using MakeWork = std::function<Work()>;
  using Size = std::function<uint64_t(const Item&)>;
  using Consume = std::function<void(Item&)>;

  OrderedPipeline(Limits limits, Produce produce, Size size, MakeWork make_work)
      : limits_(limits), produce_(std::move(produce)), size_(std::move(size)), make_work_(std::move(make_work)) {}

  void run(int workers, const Consume& consume) {
    const Stopper stopper{*this};  // joins, also when consume() or an item throws
    threads_.emplace_back([this] { produce_all(); });
    for (int i = 0; i < workers; ++i) {
      threads_.emplace_back([this] { work_all(); });
    }
    while (std::unique_ptr<Slot> slot = next_done()) {
      if (slot->failure) { std::rethrow_exception(slot->failure); }
      consume(slot->item);
    }
  }

 private:
  struct Slot {
    uint64_t number = 0, bytes = 0;
    Item item;
    std::exception_ptr failure;
  };
  struct Stopper {
    OrderedPipeline& pipeline;
    ~Stopper() {
      {
        std::lock_guard lock(pipeline.mutex_);
        pipeline.is_stopped_ = true;
      }
      pipeline.changed_.notify_all();
      for (std::thread& thread : pipeline.threads_) { thread.join(); }
    }
  };

  void produce_all() {
    uint64_t number = 0;
    bool has_more = true;
    while (has_more) {
      auto slot = std::make_unique<Slot>();
      slot->number = number++;
      try {
        has_more = produce_(slot->item);
        slot->bytes = has_more ? size_(slot->item) : 0;
      } catch (...) { slot->failure = std::current_exception(); }
      const bool has_failed = slot->failure != nullptr;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return is_stopped_ || items_ == 0 || (items_ < limits_.items && bytes_ + slot->bytes <= limits_.bytes);
      });
      if (is_stopped_) { return; }
      if (has_more) {
        ++items_;
        bytes_ += slot->bytes;
        if (has_failed) {
          done_.emplace(slot->number, std::move(slot));
        } else {
          waiting_.push_back(std::move(slot));
        }
      }
      if (!has_more || has_failed) {
        total_ = has_failed ? number : number - 1;
        is_produced_ = true;
        has_more = false;
      }
      lock.unlock();
      changed_.notify_all();
    }
  }

  void work_all() {
    Work work;
    while (true) {
      std::unique_ptr<Slot> slot;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_stopped_ || is_produced_ || !waiting_.empty(); });
        if (is_stopped_ || waiting_.empty()) { return; }
        slot = std::move(waiting_.front());
        waiting_.pop_front();
      }
      try {
        if (!work) { work = make_work_(); }
        work(slot->item);
      } catch (...) { slot->failure = std::current_exception(); }
      {
        std::lock_guard lock(mutex_);
        const uint64_t number = slot->number;
        done_[number] = std::move(slot);
      }
      changed_.notify_all();
    }
  }

  /// The next item in order; null after the last.
  std::unique_ptr<Slot> next_done() {
    std::unique_lock lock(mutex_);
    if (has_consumed_) {
      --items_;
      bytes_ -= consumed_bytes_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return done_.count(next_) > 0 || (is_produced_ && next_ == total_); });
    const auto it = done_.find(next_);
    if (it == done_.end()) { return nullptr; }
    std::unique_ptr<Slot> slot = std::move(it->second);
    done_.erase(it);
    ++next_;
    has_consumed_ = true;
    consumed_bytes_ = slot->bytes;
    return slot;
  }

  const Limits limits_;
  Produce produce_;
  Size size_;
  MakeWork make_work_;

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Slot>> waiting_;
  std::map<uint64_t, std::unique_ptr<Slot>> done_;
  size_t items_ = 0;  // produced and not yet consumed
  uint64_t bytes_ = 0;
  uint64_t next_ = 0, total_ = 0;
  bool has_consumed_ = false;
  uint64_t consumed_bytes_ = 0;
  bool is_produced_ = false, is_stopped_ = false;
};

}  // namespace hebb
