#pragma once
#include <stdexcept>
#include <string>
#include <utility>

#include "core/json.h"

namespace hebb {

/// A request that is answered by an error of the protocol (docs/verbs/serve.md). `param`: the path of the key
/// concerned; empty: none.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status_code, const std::string& message, std::string param_path = "")
      : std::runtime_error(message), status(status_code), param(std::move(param_path)) {}
  const int status;  // 400, 401, 404, 405, 413, 500 or 503
  const std::string param;
};

/// {"error": {"message", "type", "param", "code"}}
Json error_body(const ApiError& error);

}  // namespace hebb
