#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace hebb {

/// Compression of the pages of a Parquet column; the numbers of the format.
enum class ParquetCodec : int { none = 0, snappy = 1, gzip = 2, lzo = 3, brotli = 4, lz4 = 5, zstd = 6, lz4_raw = 7 };

/// Errors: DataError for a codec that is not read, or that this build lacks.
void require_codec(int64_t codec, const std::string& where);

/// Decompresses `bytes` to exactly `size` bytes. Memory grows with what the bytes really hold.
/// Errors: DataError at `where` for damage and for another size.
/// Source: format_description.txt of Snappy, RFC 1952, RFC 8878.
std::string decompress(ParquetCodec codec, std::string_view bytes, size_t size, const std::string& where);

}  // namespace hebb
