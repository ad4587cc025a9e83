# Run by each build: writes OUTPUT, which says the commit of SOURCE, where that has changed. "-modified": tracked files differ from it.
cmake_minimum_required(VERSION 3.22)  # the policies of a script are those of no version otherwise
set(ENV{GIT_OPTIONAL_LOCKS} 0)
execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=12 --exclude=* --dirty=-modified
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define HEBB_COMMIT \"@commit@\"\n" @ONLY)
