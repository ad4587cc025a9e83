#include "serve/api_error.h"

namespace hebb {

Json error_body(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  return Json::object({{"error", Json::object({{"message", error.what()},
                                               {"type", type},
                                               {"param", error.param.empty() ? Json() : Json(error.param)},
                                               {"code", error.status == 401 ? Json("invalid_api_key") : Json()}})}});
}

}  // namespace hebb
