#pragma once
#include <string>
#include <vector>

namespace hebb {

/// A library that is loaded at run time, so that programs start where it is not installed. It stays loaded.
class SharedLibrary {
 public:
  /// Whether other libraries find its symbols.
  enum class Symbols { hidden, shared };

  /// The first of `names` that can be loaded: files, or names that the system's loader looks for.
  explicit SharedLibrary(const std::vector<std::string>& names, Symbols symbols = Symbols::hidden);

  /// What was looked for and why it cannot be loaded; empty where it was.
  const std::string& problem() const { return problem_; }
  /// The file that was loaded.
  std::string path() const;
  /// Address of a symbol; null where the library has none of this name.
  void* find(const char* symbol) const;
  template <class F> bool find(const char* symbol, F*& function) const {
    function = reinterpret_cast<F*>(find(symbol));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace hebb
