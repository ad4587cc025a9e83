#pragma once
#include <string>

namespace hebb {

/// The message of the E that `call` throws; empty where it throws nothing.
template <class E, class Call> std::string thrown(Call call) {
  try {
    call();
  } catch (const E& error) { return error.what(); }
  return "";
}

}  // namespace hebb
