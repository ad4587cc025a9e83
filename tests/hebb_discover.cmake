# Registers the test cases of a Catch2 program with CTest. Catch2 2.13 cannot turn tags into CTest
# labels, so each tag of interest becomes one CTest entry: the tests of a program that carry it.
if(Catch2_FOUND)  # version 3 renamed an option, and takes a run without tests for a failure
  set(hebb_test_arguments --colour-mode none --allow-running-no-tests)
else()
  set(hebb_test_arguments --use-colour no)
endif()
# A program that hangs fails after half an hour: without a limit CTest would wait for ever.
# After the target: a name and a pattern of those without a tag that are an entry of their own, so that both run at the same time.
function(hebb_discover_tests target)
  set(others "")
  if(ARGC GREATER 1)
    set(others "~${ARGV2}")
    add_test(NAME ${target}.${ARGV1} COMMAND ${target} "~[slow]~[fast]~[threads]${ARGV2}" ${hebb_test_arguments})
    set_tests_properties(${target}.${ARGV1} PROPERTIES LABELS "normal" TIMEOUT 1800)
  endif()
  add_test(NAME ${target} COMMAND ${target} "~[slow]~[fast]~[threads]${others}" ${hebb_test_arguments})
  set_tests_properties(${target} PROPERTIES LABELS "normal")
  add_test(NAME ${target}.fast COMMAND ${target} "[fast]~[slow]~[threads]" ${hebb_test_arguments})
  set_tests_properties(${target}.fast PROPERTIES LABELS "fast")
  add_test(NAME ${target}.threads COMMAND ${target} "[threads]~[slow]" ${hebb_test_arguments})
  set_tests_properties(${target}.threads PROPERTIES LABELS "fast;threads")
  add_test(NAME ${target}.slow COMMAND ${target} "[slow]" ${hebb_test_arguments})
  set_tests_properties(${target} ${target}.fast ${target}.threads PROPERTIES TIMEOUT 1800)
  set_tests_properties(${target}.slow PROPERTIES LABELS "slow" TIMEOUT 3600)
  set(programs ${target} ${target}.fast ${target}.threads ${target}.slow)
  if(ARGC GREATER 1)
    list(APPEND programs ${target}.${ARGV1})
  endif()
  # tests/skip.h; a run with a failed case never says so.
  set_tests_properties(${programs} PROPERTIES SKIP_REGULAR_EXPRESSION "every case of this run was skipped")
endfunction()
