// Cases of operations: the CPU's kernels in fp64 against formulas, and in fp32, on one thread and on three, against
// those in fp64.
#include "core/parallel.h"
#include "tests/op_cases/machine.h"

namespace hebb_test {

void check(hebb::DType activations, const Case& body) {
  CAPTURE(hebb::dtype_name(activations));
  const Results expected =
      run_case(*host_memory(), {.activations = activations, .reals = hebb::DType::f64, .formulas = true}, body);
  if (activations == hebb::DType::f64) { return; }  // of numbers that fp32 does not hold
  std::vector<Results> found;
  for (const int count : {1, 3}) {
    hebb::set_threads(count);
    found.push_back(
        run_case(*host_memory(), {.activations = activations, .reals = hebb::DType::f32, .expected = &expected}, body));
  }
  hebb::set_threads(0);
  CHECK(found[0].bits == found[1].bits);
}

}  // namespace hebb_test
