#pragma once
// Compressed test input.
#include <stdexcept>
#include <string>

#if HEBB_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEBB_HAVE_ZSTD
#include <zstd.h>
#endif

namespace hebb {

#if HEBB_HAVE_ZLIB
inline std::string gzip(const std::string& text) {
  z_stream stream{};
  std::string out(text.size() + 1024, '\0');
  if (::deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2");
  }
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (::deflate(&stream, Z_FINISH) != Z_STREAM_END) { throw std::runtime_error("deflate"); }
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}
#endif

#if HEBB_HAVE_ZSTD
/// window_log 0: the library's choice.
inline std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  if (window_log > 0) {
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(::ZSTD_compressBound(text.size()) + 1024, '\0');
  ZSTD_inBuffer input{text.data(), text.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  // Streaming: one call with the size known would shrink the window to the text.
  ::ZSTD_compressStream2(context, &output, &input, ZSTD_e_flush);
  if (::ZSTD_compressStream2(context, &output, &input, ZSTD_e_end) != 0) { throw std::runtime_error("zstd"); }
  ::ZSTD_freeCCtx(context);
  out.resize(output.pos);
  return out;
}
#endif

}  // namespace hebb
