#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host_exchange.h"
#include "core/files.h"
#include "kernels/gemm/product_list.h"

namespace hebb {

inline constexpr const char* kTunedFile = "autotune.json";

/// Algorithms of matrix products that were measured on one kind of GPU with one version of the library
/// (docs/formats/checkpoint.md, autotune.json).
struct TunedProducts {
  std::string device;
  int64_t capability = 0, cublaslt = 0;  // 90 for sm_90; 130204 for 13.2.4
  std::vector<TunedProduct> products;
};
std::string to_text(const TunedProducts& tuned);
/// where: the name of what the text is read from. Errors: ConfigError.
TunedProducts tuned_products(std::string_view text, const std::string& where);

/// What is said of measuring that takes long: once, after a second.
class MeasuringNote {
 public:
  explicit MeasuringNote(size_t products) : products_(products) {}
  /// seconds: since measuring began. Empty where there is nothing to say.
  std::string at(int64_t done, double seconds);

 private:
  size_t products_;
  bool was_said_ = false;
};

/// What autotune() did.
struct TuningReport {
  int64_t products = 0, kept = 0, faster = 0;  // in all; measured before; with another than the first choice
  int64_t without_memory = 0;                  // not measured for want of memory; not among `products`
  double seconds = 0;

  std::string text() const;  // "autotune: 34 products, 9 faster than the heuristic's first, 2.1 s"
};

/// Chooses the algorithms of matrix products of this process on its GPU (docs/training.md, train.autotune). `file` has
/// those of an earlier start on such a device and gets those of this one; empty: this process alone keeps them. The
/// first of `ranks` measures and tells the others; null: one rank. say: told what the user should know. Errors:
/// CheckpointError where the file is damaged or cannot be written.
TuningReport autotune(const ProductList& list, const fs::path& file, HostExchange* ranks,
                      const std::function<void(const std::string&)>& say);

}  // namespace hebb
