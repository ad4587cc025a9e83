#pragma once
#include <string>

namespace hebb {

/// "1 record", "2 records". `many` where the plural is no "s" behind the word.
template <class Integer> std::string plural(Integer count, const std::string& word, const std::string& many = "") {
  return std::to_string(count) + " " + (count == 1 ? word : many.empty() ? word + "s" : many);
}

}  // namespace hebb
