#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace hebb {

/// Declares a field whose names stand for values; `v` is one of these.
template <class T>
Field& choice(Fields& f, std::string_view name, T& v, const std::vector<std::pair<const char*, T>>& choices) {
  std::string text;
  std::vector<std::string> names;
  for (const auto& [one, value] : choices) {
    names.emplace_back(one);
    if (value == v) { text = one; }
  }
  Field& declared = f.field(name, text).one_of(std::move(names));
  for (const auto& [one, value] : choices) {
    if (text == one) { v = value; }
  }
  return declared;
}

}  // namespace hebb
