#include "train/autotune.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "core/elapsed.h"
#include "core/fields.h"
#include "core/sign_of_life.h"
#include "train/choose_device.h"
#ifdef HEBB_HAVE_CUDA
#include "kernels/gemm/cuda_tune.h"
#endif

namespace hebb {
namespace {

/// 64 bytes as digits, word by word.
std::string digits_of(const std::array<uint64_t, 8>& words) {
  std::string digits;
  for (const uint64_t word : words) { digits += fmt::format("{:016x}", word); }
  return digits;
}

bool read_digits(const std::string& digits, std::array<uint64_t, 8>& words) {
  if (digits.size() != 16 * words.size() || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  for (size_t i = 0; i < words.size(); ++i) { words[i] = std::stoull(digits.substr(16 * i, 16), nullptr, 16); }
  return true;
}

}  // namespace

void fields(Fields& f, TunedProduct& t) {
  ProductKey& p = t.product;
  for (const auto& [name, size] :
       {std::pair{"m", &p.m}, {"n", &p.n}, {"k", &p.k}, {"ldc", &p.ldc}, {"lda", &p.lda}, {"ldb", &p.ldb}}) {
    f.field(name, *size).required().min(1);
  }
  f.field("trans_a", p.trans_a).required();
  f.field("trans_b", p.trans_b).required();
  f.field("tf32", p.tf32).required();
  std::string out = precision_name(p.out), in = precision_name(p.in), algorithm = digits_of(t.algorithm);
  f.field("out", out).required().one_of({"fp32", "bf16"});
  f.field("in", in).required().one_of({"fp32", "bf16"});
  for (const auto& [name, bytes] :
       {std::pair{"align_c", &p.align_c}, {"align_a", &p.align_a}, {"align_b", &p.align_b}}) {
    f.field(name, *bytes).required().min(1).max(16);
  }
  f.field("algorithm", algorithm).required();
  f.field("first_us", t.first_us).required().min(0);
  f.field("us", t.us).required().min(0);
  if (!f.reading()) { return; }
  p.out = dtype_of_precision(out);
  p.in = dtype_of_precision(in);
  f.require(read_digits(algorithm, t.algorithm), "algorithm", "128 hexadecimal digits");
}

void fields(Fields& f, TunedProducts& t) {
  f.field("device", t.device).required();
  f.field("capability", t.capability).required();
  f.field("cublaslt", t.cublaslt).required();
  f.list("products", t.products).required();
}

std::string to_text(const TunedProducts& tuned) { return Fields::write(tuned).dump(1) + "\n"; }

TunedProducts tuned_products(std::string_view text, const std::string& where) {
  return Fields::read<TunedProducts>(parse_json(text, where), "");
}

std::string MeasuringNote::at(int64_t done, double seconds) {
  if (was_said_ || seconds < 1) { return ""; }
  was_said_ = true;
  return fmt::format("autotune: measuring {:d} matrix products, {:d} done (train.autotune)", products_, done);
}

std::string TuningReport::text() const {
  return fmt::format("autotune: {:d} products{}, {:d} faster than the heuristic's first, {:.1f} s", products,
                     kept > 0 ? fmt::format(" ({:d} measured before)", kept) : "", faster, seconds);
}

#ifdef HEBB_HAVE_CUDA
namespace {

using Say = std::function<void(const std::string&)>;

TunedProducts none_on_this_device() {
  const HEBB_DEVICE::DeviceInfo device = HEBB_DEVICE::device_info();
  return {.device = device.name,
          .capability = device.capability,
          .cublaslt = HEBB_DEVICE::products_version(),
          .products = {}};
}

bool are_of_one_kind(const TunedProducts& a, const TunedProducts& b) {
  return a.device == b.device && a.capability == b.capability && a.cublaslt == b.cublaslt;
}

std::string kind_of(const TunedProducts& t) {
  return fmt::format("{} (compute capability {}.{}) with cuBLASLt {}", t.device, t.capability / 10, t.capability % 10,
                     t.cublaslt);
}

/// What an earlier start kept for this kind of device.
std::vector<TunedProduct> read_kept(const fs::path& file, const TunedProducts& here, const Say& say) {
  if (file.empty() || !fs::exists(file)) { return {}; }
  TunedProducts kept;
  try {
    kept = tuned_products(read_file(file, ExitCode::kCheckpoint), file.string());
  } catch (const ConfigError& e) {
    throw CheckpointError(file.string(),
                          "the file is damaged (the run measures again without it): " + std::string(e.what()));
  }
  if (!are_of_one_kind(kept, here)) {
    say(fmt::format("autotune: {} is of {}, not of {}: measuring again", file.string(), kind_of(kept), kind_of(here)));
    return {};
  }
  return std::move(kept.products);
}

void take(const std::vector<TunedProduct>& products, const std::string& where) {
  Stream stream{.device = DeviceKind::cuda};
  if (const std::string refused = HEBB_DEVICE::take_algorithms(stream, products); !refused.empty()) {
    throw CheckpointError(where, "cuBLASLt refuses " + refused + " (the run measures again without the file)");
  }
}

/// Those of `list`, from the file or measured.
TunedProducts choose(const ProductList& list, const fs::path& file, const Say& say, TuningReport& report) {
  TunedProducts tuned = none_on_this_device();
  static std::vector<TunedProduct> earlier;  // of this process, which no file keeps
  std::vector<TunedProduct> kept = file.empty() ? earlier : read_kept(file, tuned, say);
  std::map<ProductKey, bool> missing = list.products();
  for (const TunedProduct& t : kept) { report.kept += static_cast<int64_t>(missing.erase(t.product)); }
  take(kept, file.string());
  if (!missing.empty()) {
    const auto start = std::chrono::steady_clock::now();
    MeasuringNote note(missing.size());
    Stream stream{.device = DeviceKind::cuda};
    HEBB_DEVICE::MeasuredProducts measured = HEBB_DEVICE::measure_products(stream, missing, [&](int64_t done) {
      sign_of_life();
      if (const std::string text = note.at(done, seconds_since(start)); !text.empty()) { say(text); }
    });
    report.without_memory = measured.without_memory;
    take(measured.products, "autotune");
    kept.insert(kept.end(), measured.products.begin(), measured.products.end());
  }
  tuned.products = std::move(kept);
  if (file.empty()) {
    earlier = tuned.products;
  } else if (!missing.empty()) {
    write_file_atomic(file, to_text(tuned));
  }
  std::erase_if(tuned.products, [&](const TunedProduct& t) { return !list.products().contains(t.product); });
  return tuned;
}

}  // namespace

TuningReport autotune(const ProductList& list, const fs::path& file, HostExchange* ranks, const Say& say) {
  const auto start = std::chrono::steady_clock::now();
  const bool is_first = ranks == nullptr || ranks->communicator().rank() == 0;
  TuningReport report;
  TunedProducts tuned;
  if (is_first) { tuned = choose(list, file, say, report); }
  if (ranks != nullptr && ranks->communicator().size() > 1) {
    const std::string told = ranks->from_first(is_first ? to_text(tuned) : "");
    if (!is_first) {
      tuned = tuned_products(told, "rank 0");
      if (const TunedProducts here = none_on_this_device(); are_of_one_kind(tuned, here)) {
        take(tuned.products, "rank 0");
      } else {
        say(fmt::format("autotune: rank 0 has {}, this rank {}: the heuristic's first choices are taken",
                        kind_of(tuned), kind_of(here)));
      }
    }
  }
  report.products = static_cast<int64_t>(tuned.products.size());
  report.faster =
      std::count_if(tuned.products.begin(), tuned.products.end(), [](const TunedProduct& t) { return t.is_faster(); });
  report.seconds = seconds_since(start);
  if (report.without_memory > 0) {
    say(fmt::format("autotune: no memory to measure {:d} products, which take the heuristic's first choice",
                    report.without_memory));
  }
  return report;
}
#else
TuningReport autotune(const ProductList&, const fs::path&, HostExchange*,
                      const std::function<void(const std::string&)>&) {
  return {};  // without a GPU nothing is chosen
}
#endif

}  // namespace hebb
