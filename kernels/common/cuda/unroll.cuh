#pragma once
// Loops that are unrolled by a number of turns; HEBB_UNROLL of prelude.h unrolls wholly.

#ifdef HEBB_SIMT
#define HEBB_UNROLL_BY(count)
#else
#define HEBB_PRAGMA(text) _Pragma(#text)
#define HEBB_UNROLL_BY(count) HEBB_PRAGMA(unroll(count))
#endif
