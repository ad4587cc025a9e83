#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/arena.h"
#include "core/random.h"

namespace hebb {

/// Draws the initial values of one tensor, row-major, in fp32 (docs/model.md, Initial values). `rng` is the
/// stream (train.seed, parameter name, 0).
using Init = std::function<void(Rng& rng, float* values, int64_t count)>;

namespace init {
Init constant(double value);
Init normal(double std);
Init uniform(double low, double high);
/// Normal, drawn again from the same stream until within 3 std of 0.
Init truncated_normal(double std);
/// gain times a [rows, columns] matrix with orthonormal columns, or rows where it is wider than tall:
/// Q of the QR decomposition of a normal matrix, computed in double, with the signs that make R's
/// diagonal positive. Costs about 4 rows columns^2 multiply-adds (rows >= columns).
Init orthogonal(int64_t rows, int64_t columns, double gain);
}  // namespace init

/// What ranks do with the values of a scratch tensor that layers count in, before Model::after_step.
enum class Combine { none, sum, any };  // any: 1 where a rank has 1

enum class ParamKind {
  trained,  // stepped by the optimizer
  fast,     // fast weights: written by forward passes, counted as parameters, no optimizer
  state,    // other floating-point state with an optimizer of its own (thresholds): has m, v and updates
  buffer,   // int32 state of the model (counters)
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  ParamKind kind = ParamKind::trained;
  bool decay_exempt = false;   // never decayed, whatever its rank (layer pages); one-dimensional tensors never are
  bool initial_state = false;  // a learned initial memory, listed apart in parameter counts (docs/evaluations/cost.md)
  bool memory_table = false;   // a trained table of which a token reads some rows (PKM, SDM), whatever its rank
  bool has_all_rows = false;   // fast weights that the rows of all ranks move alike
  bool reads_fp32 = false;     // a matrix that layers read in fp32: no rounded copy in bf16
};

/// One named tensor of the model: value, and what training adds to it.
struct Param {
  ParamSpec spec;
  Tensor value;          // f32 or f64 (i32 for buffers); without data where ranks share it (ParamStore::Own)
  Tensor copy;           // of a matrix, in stores for bf16: value rounded, what products and reads of tables take
  Tensor grad, m, v;     // in a training store; same dtype as value (grad: trained only; m, v: state too)
  int64_t updates = 0;   // AdamW's t
  bool reached = false;  // the loss of this step reached it; state: its own optimizer moves it in this step

  const std::string& name() const { return spec.name; }
  bool trained() const { return spec.kind == ParamKind::trained; }
  /// The optimizer's memory of this tensor starts anew.
  void reset_moments(Stream& stream);
  /// Fast weights of which each lane has its own.
  bool is_of_lane() const { return spec.kind == ParamKind::fast && !spec.has_all_rows; }
  bool is_matrix() const { return trained() && !spec.reads_fp32 && (spec.shape.rank == 2 || spec.memory_table); }
  /// For layers that read a matrix as Tape::value.
  Param& read_in_fp32() {
    spec.reads_fp32 = true;
    return *this;
  }
  bool decays() const { return trained() && !spec.decay_exempt && spec.shape.rank >= 2; }
};

/// All parameters and persistent state of a model, in declaration order. Layers declare while they
/// are built; allocate() then lays values, gradients and moments out in one block each, and for bf16 the
/// copies of matrices. Values are master values in fp32 then; copies follow them (AdamW writes both) and are
/// never stored.
class ParamStore {
 public:
  ParamStore() = default;
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  /// Duplicate names are programmer errors. The reference stays valid.
  Param& declare(ParamSpec spec);
  Param* find(std::string_view name) const;
  /// Memory of the device that is neither parameter nor state: what a layer counts during a step. Nobody sets its first
  /// values. dtype: none for that of floating-point values; i64 or i32 for what ranks combine. The tensor is defined by
  /// allocate(); the reference stays valid.
  const Tensor& declare_scratch(std::string name, Shape shape, std::optional<DType> dtype,
                                Combine combine = Combine::none);
  struct Combined {
    Tensor tensor;
    Combine combine;
  };
  /// What ranks combine, in order of declaration. After allocate().
  std::vector<Combined> combined() const;

  /// What is allocated for trained parameters in a training store; the caller sets the rest (Param::grad, m, v).
  /// masters: values of parameters that have copies; without, these alone are what passes read.
  struct Own {
    bool gradients = true, moments = true, masters = true;
  };
  /// dtype: of activations. Values are f64 for f64, else f32; gradients and moments too when `training`.
  void allocate(Arena& arena, DType dtype, bool training) { allocate(arena, dtype, training, Own{}); }
  void allocate(Arena& arena, DType dtype, bool training, Own own);
  /// Initial values of every tensor from its own stream.
  void initialize(Stream& stream, uint64_t seed);
  /// Copies = rounded values: after whatever but AdamW writes values of matrices. Needs values of all.
  void refresh_copies(Stream& stream);
  void zero_grads(Stream& stream);  // those that the store has allocated, and the reached flags

  const std::vector<std::unique_ptr<Param>>& all() const { return params_; }
  DType dtype() const { return dtype_; }  // of activations
  int64_t count(ParamKind kind) const;    // elements

 private:
  struct Scratch {
    std::string name;
    std::optional<DType> dtype;
    Tensor tensor;
    Combine combine;
  };
  std::vector<std::unique_ptr<Param>> params_;
  std::unordered_map<std::string_view, Param*> by_name_;  // the keys are the parameters' own names
  std::deque<Scratch> scratch_;
  DType dtype_ = DType::f32;
  std::vector<Buffer> blocks_;
  Tensor grads_;
};

}  // namespace hebb
