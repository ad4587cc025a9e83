#pragma once
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/workspace.h"

namespace hebb {

/// Index of a value on a tape.
struct Var {
  int32_t id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Var&) const = default;
};

class Tape;

/// One differentiable operation: Vars, saved tensors and sizes. Most are functions (Tape::record); those that share
/// more with their forward pass are structs. backward() reads tape.grad(output) and writes tape.grad_slot(input); it is
/// called once, after all later nodes, and only if the loss reached one of the outputs.
struct Node {
  virtual ~Node() = default;
  virtual void backward(Tape& tape) = 0;
};

/// Where a backward kernel writes: undefined tensor = nobody wants it; `accumulate` says whether to
/// add to what is there or to overwrite.
struct GradSlot {
  Tensor tensor;
  bool accumulate = false;
  explicit operator bool() const { return tensor.defined(); }
  /// The gradient in the shape that a kernel takes; undefined where nobody wants it.
  Tensor view(const Shape& shape) const { return tensor.defined() ? tensor.view(shape) : Tensor{}; }
};

/// Records nodes as the forward pass runs and executes them backward in exactly reverse order.
/// Memory: outputs and saved tensors live until their node's backward has run; a gradient lives from
/// its first writer to its producer's backward.
class Tape {
 public:
  Tape(Stream& stream, Arena& arena, bool recording) : stream_(stream), arena_(arena), recording_(recording) {}

  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  bool recording() const { return recording_; }
  /// Prefix of the names of allocations from here on ("blocks.3.mixer"): memory plans show it.
  void set_scope(std::string scope) { scope_ = std::move(scope); }
  const std::string& scope() const { return scope_; }
  /// True while a recompute() scope runs its function again: layers must not repeat side effects.
  bool recomputing() const { return recomputing_; }
  /// True while a recompute() scope runs its function for the first time.
  bool will_run_again() const { return will_run_again_; }

  /// A value that the tape does not own and that gets no gradient.
  Var constant(const Tensor& value);
  /// A value whose gradient accumulates into memory of the caller (parameters); *reached is set when
  /// a backward node writes it. copy: `value` rounded, for matrix(); or undefined.
  Var leaf(const Tensor& value, const Tensor& grad, bool* reached, const Tensor& copy = {});
  /// A fresh value; it becomes an output of the next recorded node.
  Var output(Shape shape, DType dtype, std::string_view name);
  /// Memory that the next recorded node keeps for its backward pass.
  Tensor saved(Shape shape, DType dtype, std::string_view name);
  /// For the scratch of one operation.
  Workspace workspace() { return Workspace(stream_, arena_, scope_); }
  /// Memory for the duration of a C++ scope.
  Buffer scratch(Shape shape, DType dtype, std::string_view name) { return Buffer(arena_, shape, dtype, scoped(name)); }
  /// The same value under another shape; gradients flow through.
  Var view(Var v, Shape shape);

  const Tensor& value(Var v) const { return slots_[v.id].value; }
  /// Undefined where there is no v.
  Tensor value_or_none(Var v) const { return v ? value(v) : Tensor{}; }
  /// A parameter as matrix products read it: the rounded copy where there is one, else the value. In bf16
  /// it has the activations' type; `value` is the fp32 master, for norms, biases, gates.
  const Tensor& matrix(Var v) const { return slots_[v.id].copy.defined() ? slots_[v.id].copy : slots_[v.id].value; }
  const Shape& shape(Var v) const { return slots_[v.id].value.shape; }
  DType dtype(Var v) const { return slots_[v.id].value.dtype; }

  /// Appends the node that made the outputs since the last record(). Does nothing (but claim the
  /// outputs) when not recording.
  template <class N> void record(N node) {
    if (recording_) {
      append(std::make_unique<N>(std::move(node)));
    } else {
      claim();
    }
  }
  /// The same; returns the output `output` of the node.
  template <class N> Var record(N node, std::type_identity_t<Var N::*> output) {
    const Var result = node.*output;
    record(std::move(node));
    return result;
  }
  /// The same with backward(tape) as the node's backward pass: a function that has captured what it needs by value.
  /// Returns `outputs`, one Var or several.
  template <class Outputs, std::invocable<Tape&> F> Outputs record(Outputs outputs, F backward) {
    struct Function final : Node {
      F f;
      explicit Function(F function) : f(std::move(function)) {}
      void backward(Tape& tape) override { f(tape); }
    };
    record(Function(std::move(backward)));
    return outputs;
  }

  // In backward():
  bool wants_grad(Var v) const { return v && slots_[v.id].wants_grad; }
  bool has_grad(Var v) const { return v && grad(v).defined(); }
  /// The gradient that arrived at v, shaped like its value; undefined if none did.
  Tensor grad(Var v) const;
  GradSlot grad_slot(Var v);
  /// d_to += d_from without a copy where nothing was written to d_to yet.
  void pass_grad(Var to, Var from);

  /// Starts the backward pass at v with the given gradient (copied).
  void seed_grad(Var v, const Tensor& grad);
  /// For nodes whose backward needs no incoming gradient (a loss computed with its gradients).
  void mark_reached(Var v) { slots_[v.id].reached = true; }
  void backward();
  /// Before the first leaf: `hook` is called by backward() with the gradient of each leaf that has one, once for all
  /// leaves of that memory, as soon as no node is left that can add to it: all that were recorded after the first of
  /// these leaves was made have run. Whether the loss reached the leaf does not matter.
  void call_when_final(std::function<void(const Tensor& grad)> hook) { when_final_ = std::move(hook); }

  /// Runs fn without keeping what it saves, and runs it again in the backward pass. The returned
  /// values must be all that later code uses. Results are the same bits as without.
  std::vector<Var> recompute(const std::function<std::vector<Var>()>& fn);

  /// While not recording: frees every value made since construction, `keep`s excepted, at the end
  /// of the C++ scope. While recording it does nothing.
  class Scope {
   public:
    explicit Scope(Tape& tape) : tape_(tape), first_(tape.slots_.size()), saved_(tape.pending_saved_.size()) {}
    ~Scope() { tape_.drop_values(first_, saved_, kept_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Var keep(Var v) {
      kept_.push_back(v);
      return v;
    }

   private:
    Tape& tape_;
    size_t first_, saved_;
    std::vector<Var> kept_;
  };

 private:
  struct Slot {
    Tensor value, copy;
    std::shared_ptr<Buffer> owner;  // of value; null for constants and leaves
    std::shared_ptr<Buffer> grad;   // null until written
    Tensor leaf_grad;               // leaves
    bool* leaf_reached = nullptr;
    int32_t base = -1;  // views: whose gradient
    bool wants_grad = false;
    bool reached = false;  // mark_reached
  };
  struct Entry {
    std::unique_ptr<Node> node;
    int32_t first, last;  // slots [first, last) are its outputs
    std::vector<Buffer> saved;
  };
  struct OpenLeaf {
    Tensor grad;
    size_t first;  // entries before it cannot use the leaf
  };
  friend struct RecomputeNode;

  /// "SCOPE/name" where names are kept (the counting device), else the name alone.
  std::string scoped(std::string_view name) const {
    return arena_.device() == DeviceKind::count && !scope_.empty() ? scope_ + "/" + std::string(name)
                                                                   : std::string(name);
  }
  Var add_slot(Slot slot);
  int32_t root(Var v) const { return slots_[v.id].base >= 0 ? slots_[v.id].base : v.id; }
  void append(std::unique_ptr<Node> node);
  void claim() { claimed_ = static_cast<int32_t>(slots_.size()); }
  void run_backward(size_t down_to);
  void note_leaf(const Tensor& grad);
  void close_leaves();
  void drop_values(size_t first_slot, size_t first_saved, const std::vector<Var>& kept);

  Stream& stream_;
  Arena& arena_;
  bool recording_;
  bool recomputing_ = false, will_run_again_ = false;
  std::string scope_;
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<Buffer> pending_saved_;
  std::function<void(const Tensor& grad)> when_final_;
  std::vector<OpenLeaf> open_leaves_;      // `first` ascending
  std::map<const void*, bool> has_final_;  // by memory of the gradient: no node can add to it
  int32_t claimed_ = 0;                    // slots below belong to recorded nodes
};

}  // namespace hebb
