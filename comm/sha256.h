#pragma once
#include <string>
#include <string_view>

namespace hebb {

/// SHA-256 of FIPS 180-4: 32 bytes.
std::string sha256(std::string_view bytes);
/// HMAC-SHA-256 of RFC 2104: 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view bytes);

/// Two digits a byte.
std::string hexadecimal(std::string_view bytes);
/// 32 random bytes as hexadecimal digits. Errors: CommError.
std::string make_secret();
/// Compares in a time that does not depend on where texts differ.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace hebb
