#include <fmt/core.h>

#include <CLI/Version.hpp>
#include <nlohmann/json_fwd.hpp>
#ifndef NLOHMANN_JSON_VERSION_MAJOR  // before 3.11 only the large header says it
#include <nlohmann/json.hpp>
#endif
#if HEBB_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEBB_HAVE_ZSTD
#include <zstd.h>
#endif

#include "commit.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

std::string dotted(int major, int minor, int patch) { return fmt::format("{:d}.{:d}.{:d}", major, minor, patch); }

}  // namespace

std::string version_text() {
  std::string text = "hebb " HEBB_VERSION ", commit " HEBB_COMMIT "\n";
  text += "build: C++ " __VERSION__;
#ifdef __OPTIMIZE__
  text += ", optimised";
#else
  text += ", not optimised";
#endif
#if HEBB_HAVE_CUDA
  text += ", CUDA";
#else
  text += ", no CUDA";
#endif
  text += "\nlibraries: CLI11 " CLI11_VERSION;
  text += ", nlohmann-json " +
          dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
#if HEBB_HAVE_ZLIB
  text += std::string(", zlib ") + zlibVersion();
#else
  text += ", no zlib";
#endif
#if HEBB_HAVE_ZSTD
  text += std::string(", zstd ") + ZSTD_versionString();
#else
  text += ", no zstd";
#endif
#if HEBB_HAVE_SENTENCEPIECE
  text += ", sentencepiece";
#else
  text += ", no sentencepiece";
#endif
  return text;
}

}  // namespace hebb
