#pragma once
#include "kernels/fwmlp/fwmlp.h"

namespace hebb {

struct FwmlpReadScratch {
  Tensor out;  // [R, value_dim]
};

struct FwmlpStepScratch {
  Tensor residual;  // [R, value_dim]
  Tensor d_act;     // [R, 2 hidden]
  Tensor d_hid;     // [R, hidden]
};

struct FwmlpBackwardScratch {
  Tensor y;        // [R, value_dim]
  Tensor d_act;    // [R, 2 hidden]
  Tensor d_hid;    // [R, hidden]
  Tensor d_local;  // [R, key_dim]
  // Where a gradient comes through the step.
  Tensor residual;       // [R, value_dim]
  Tensor tangent;        // [total]
  Tensor t_act, d_tact;  // [R, 2 hidden]
  Tensor t_hid, d_thid;  // [R, hidden]
};

}  // namespace hebb
