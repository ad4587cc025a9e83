#pragma once
#include "core/fields.h"

namespace hebb {

/// A size of a layer, int64_t or optional: at least 1. Smaller copies of a model have it as `scaling` says.
template <class T>
Field& size_field(Fields& f, std::string_view name, T& size, const Scaling& scaling, std::string_view help) {
  return f.field(name, size).min(1).help(help).scales(scaling);
}
/// The same without a default.
template <class T>
Field& required_size(Fields& f, std::string_view name, T& size, const Scaling& scaling, std::string_view help) {
  return f.field(name, size).required().min(1).help(help).scales(scaling);
}

}  // namespace hebb
