#include "kernels/bias.h"

#include "kernels/cuda/common/prelude.h"

// Bound by HBM: y once in, once out. The gradient is in column_sums.cu.
namespace hebb::HEBB_DEVICE {
namespace {

template <class T>
struct AddRow {
  T* y;
  const float* bias;
  int64_t columns;

  __device__ void operator()(int64_t row, int64_t column) const { write(y[row * columns + column], bias[column], true); }
};

}  // namespace

void run(Stream& stream, const AddBias& a) {
  const int64_t columns = a.bias.numel();
  dispatch_float(a.y.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("add_bias", stream, a.y.numel() / columns, columns, AddRow<T>{a.y.as<T>(), a.bias.as<float>(), columns});
  });
}

}  // namespace hebb::HEBB_DEVICE
