#include "core/tape.h"

#include <algorithm>

namespace hebb {

Var Tape::add_slot(Slot slot) {
  slots_.push_back(std::move(slot));
  return Var{static_cast<int32_t>(slots_.size() - 1)};
}

Var Tape::constant(const Tensor& value) {
  Slot slot;
  slot.value = value;
  return add_slot(std::move(slot));
}

Var Tape::leaf(const Tensor& value, const Tensor& grad, bool* reached, const Tensor& copy) {
  Slot slot;
  slot.value = value;
  slot.copy = copy;
  slot.leaf_grad = grad;
  slot.leaf_reached = reached;
  slot.wants_grad = recording_ && grad.defined();
  if (when_final_ && grad.defined() && (recording_ || will_run_again_)) { note_leaf(grad); }
  return add_slot(std::move(slot));
}

void Tape::note_leaf(const Tensor& grad) {
  const auto [known, is_new] = has_final_.emplace(grad.data, false);
  HEBB_ASSERT(!known->second);
  if (is_new) { open_leaves_.push_back({grad, entries_.size()}); }
}

void Tape::close_leaves() {
  while (!open_leaves_.empty() && open_leaves_.back().first >= entries_.size()) {
    const Tensor grad = open_leaves_.back().grad;
    open_leaves_.pop_back();
    has_final_[grad.data] = true;
    when_final_(grad);
  }
}

Var Tape::output(Shape shape, DType dtype, std::string_view name) {
  Slot slot;
  slot.owner = std::make_shared<Buffer>(arena_, shape, dtype, scoped(name));
  slot.value = slot.owner->tensor();
  slot.wants_grad = recording_;
  return add_slot(std::move(slot));
}

Tensor Tape::saved(Shape shape, DType dtype, std::string_view name) {
  pending_saved_.emplace_back(arena_, shape, dtype, scoped(name));
  return pending_saved_.back();
}

Var Tape::view(Var v, Shape shape) {
  Slot slot;
  slot.value = value(v).view(shape);
  slot.copy = slots_[v.id].copy.defined() ? slots_[v.id].copy.view(shape) : Tensor{};
  slot.owner = slots_[v.id].owner;
  slot.base = root(v);
  slot.wants_grad = slots_[v.id].wants_grad;
  return add_slot(std::move(slot));
}

void Tape::append(std::unique_ptr<Node> node) {
  Entry entry;
  entry.node = std::move(node);
  entry.first = claimed_;
  claim();
  entry.last = claimed_;
  entry.saved = std::move(pending_saved_);
  pending_saved_.clear();
  entries_.push_back(std::move(entry));
}

Tensor Tape::grad(Var v) const {
  const Slot& slot = slots_[root(v)];
  return slot.grad ? slot.grad->tensor().view(value(v).shape) : Tensor{};
}

GradSlot Tape::grad_slot(Var v) {
  if (!wants_grad(v)) { return {}; }
  Slot& slot = slots_[root(v)];
  const Shape& shape = value(v).shape;
  if (slot.leaf_grad.defined()) {
    if (slot.leaf_reached != nullptr) { *slot.leaf_reached = true; }
    return {slot.leaf_grad.view(shape), true};
  }
  if (!slot.grad) {
    slot.grad = std::make_shared<Buffer>(arena_, slot.value.shape, slot.value.dtype, scoped("gradient"));
    return {slot.grad->tensor().view(shape), false};
  }
  if (slot.grad.use_count() > 1) {
    auto own = std::make_shared<Buffer>(arena_, slot.value.shape, slot.value.dtype, scoped("gradient"));
    copy(stream_, own->tensor(), slot.grad->tensor());
    slot.grad = std::move(own);
  }
  return {slot.grad->tensor().view(shape), true};
}

void Tape::pass_grad(Var to, Var from) {
  if (!wants_grad(to)) { return; }
  Slot& target = slots_[root(to)];
  const std::shared_ptr<Buffer>& source = slots_[root(from)].grad;
  HEBB_ASSERT(source != nullptr);
  if (!target.leaf_grad.defined() && !target.grad) {
    target.grad = source;
    return;
  }
  const GradSlot slot = grad_slot(to);
  add_to(stream_, slot.tensor, source->tensor().view(slot.tensor.shape));
}

void Tape::seed_grad(Var v, const Tensor& grad) {
  const GradSlot slot = grad_slot(v);
  HEBB_ASSERT(slot && !slot.accumulate);
  copy(stream_, slot.tensor, grad);
}

void Tape::backward() {
  run_backward(0);
  close_leaves();
}

void Tape::run_backward(size_t down_to) {
  while (entries_.size() > down_to) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    bool reached = false;
    for (int32_t i = entry.first; i < entry.last; ++i) {
      reached = reached || slots_[i].reached || (slots_[i].grad != nullptr && slots_[i].base < 0);
    }
    if (reached) { entry.node->backward(*this); }
    for (int32_t i = entry.first; i < entry.last; ++i) {
      slots_[i].grad.reset();
      slots_[i].owner.reset();
    }
    close_leaves();
  }
}

void Tape::drop_values(size_t first_slot, size_t first_saved, const std::vector<Var>& kept) {
  if (recording_) { return; }
  std::vector<std::shared_ptr<Buffer>> keep;
  for (Var v : kept) { keep.push_back(slots_[v.id].owner); }
  std::vector<bool> is_kept(slots_.size() - first_slot, false);
  for (Var v : kept) {
    if (static_cast<size_t>(v.id) >= first_slot) { is_kept[static_cast<size_t>(v.id) - first_slot] = true; }
  }
  for (size_t i = first_slot; i < slots_.size(); ++i) {
    if (!is_kept[i - first_slot]) { slots_[i].owner.reset(); }
  }
  pending_saved_.erase(
      pending_saved_.begin() + static_cast<std::ptrdiff_t>(std::min(first_saved, pending_saved_.size())),
      pending_saved_.end());
}

struct RecomputeNode final : Node {
  std::function<std::vector<Var>()> fn;
  std::vector<Var> outputs;

  void backward(Tape& tape) override {
    const size_t entries = tape.entries_.size();
    tape.recomputing_ = true;
    const std::vector<Var> again = fn();
    tape.recomputing_ = false;
    HEBB_ASSERT(again.size() == outputs.size());
    for (size_t i = 0; i < again.size(); ++i) {
      tape.slots_[tape.root(again[i])].grad = tape.slots_[tape.root(outputs[i])].grad;
    }
    tape.run_backward(entries);
  }
};

std::vector<Var> Tape::recompute(const std::function<std::vector<Var>()>& fn) {
  if (!recording_) { return fn(); }
  RecomputeNode node;
  node.fn = fn;
  const int32_t first = claimed_;
  recording_ = false;
  will_run_again_ = true;
  {
    Scope scope(*this);
    node.outputs = fn();
    for (Var v : node.outputs) { scope.keep(v); }
  }
  recording_ = true;
  will_run_again_ = false;
  for (Var v : node.outputs) {
    slots_[root(v)].wants_grad = true;
    slots_[v.id].wants_grad = true;
  }
  std::vector<Var> outputs = node.outputs;
  claimed_ = first;  // the inner nodes are gone: everything made since is this node's
  append(std::make_unique<RecomputeNode>(std::move(node)));
  return outputs;
}

}  // namespace hebb
