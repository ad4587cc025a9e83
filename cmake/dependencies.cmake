# Packages from the distribution. Required ones stop the configuration and name the package to
# install; optional ones switch off one feature, which `hebb doctor` names.
add_library(hebb_dependencies INTERFACE)

find_package(Threads REQUIRED)
target_link_libraries(hebb_dependencies INTERFACE Threads::Threads)

function(hebb_require_header header package)
  string(MAKE_C_IDENTIFIER "HEBB_INCLUDE_${header}" var)
  find_path(${var} ${header})
  if(NOT ${var})
    message(FATAL_ERROR "hebb: ${header} not found; install the package ${package} (Debian, Ubuntu)")
  endif()
  target_include_directories(hebb_dependencies SYSTEM INTERFACE ${${var}})
endfunction()

hebb_require_header(nlohmann/json.hpp nlohmann-json3-dev)
hebb_require_header(CLI/CLI.hpp libcli11-dev)
hebb_require_header(utf8proc.h libutf8proc-dev)
find_library(HEBB_UTF8PROC_LIBRARY utf8proc REQUIRED)
target_link_libraries(hebb_dependencies INTERFACE ${HEBB_UTF8PROC_LIBRARY})

# hebb_optional(NAME header library package): defines HEBB_HAVE_NAME=1 when both are found.
function(hebb_optional name header library package)
  find_path(HEBB_${name}_INCLUDE ${header})
  find_library(HEBB_${name}_LIBRARY ${library})
  if(HEBB_${name}_INCLUDE AND HEBB_${name}_LIBRARY)
    target_include_directories(hebb_dependencies SYSTEM INTERFACE ${HEBB_${name}_INCLUDE})
    target_link_libraries(hebb_dependencies INTERFACE ${HEBB_${name}_LIBRARY})
    target_compile_definitions(hebb_dependencies INTERFACE HEBB_HAVE_${name}=1)
  else()
    message(WARNING "hebb: ${name} is switched off; install the package ${package} to have it")
  endif()
endfunction()

hebb_optional(ZLIB zlib.h z zlib1g-dev)
hebb_optional(ZSTD zstd.h zstd libzstd-dev)
hebb_optional(SENTENCEPIECE sentencepiece_processor.h sentencepiece libsentencepiece-dev)
if(HEBB_SENTENCEPIECE_LIBRARY)
  find_library(HEBB_SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
  if(HEBB_SENTENCEPIECE_TRAIN_LIBRARY)
    target_link_libraries(hebb_dependencies INTERFACE ${HEBB_SENTENCEPIECE_TRAIN_LIBRARY})
  endif()
endif()
