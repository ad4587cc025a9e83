#include "kernels/bias/bias.h"

#include "kernels/common/cuda/prelude.cuh"

// Bound by HBM: y once in, once out. The gradient is in column_sums.cu.
namespace hebb::HEBB_DEVICE {
namespace {

template <class T, int N> struct AddRow {
  T* y;
  const float* bias;
  int64_t columns;

  __device__ void operator()(int64_t row, int64_t pack) const {
    float value[N];
    load_pack(value, bias, pack * N, columns, N > 1);
    write_pack(y + row * columns, pack * N, columns, N > 1, value, true);
  }
};

}  // namespace

void run(Stream& stream, const AddBias& a) {
  const int64_t columns = a.bias.numel();
  dispatch_float(a.y.dtype, [&]<class T>(T) {
    dispatch_pack<T>(columns, {a.y.data, a.bias.data}, [&](auto pack) {
      each_element("add_bias", stream, a.y.numel() / columns, columns / pack(),
                   AddRow<T, pack()>{a.y.as<T>(), a.bias.as<float>(), columns});
    });
  });
}

}  // namespace hebb::HEBB_DEVICE
