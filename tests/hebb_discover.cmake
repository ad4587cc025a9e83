# Registers the test cases of a Catch2 program with CTest. Catch2 2.13 cannot turn tags into CTest
# labels, so each tag of interest becomes one CTest entry: the tests of a program that carry it.
function(hebb_discover_tests target)
  add_test(NAME ${target} COMMAND ${target} "~[slow]~[fast]~[threads]" --use-colour no)
  set_tests_properties(${target} PROPERTIES LABELS "normal")
  add_test(NAME ${target}.fast COMMAND ${target} "[fast]~[slow]~[threads]" --use-colour no)
  set_tests_properties(${target}.fast PROPERTIES LABELS "fast")
  add_test(NAME ${target}.threads COMMAND ${target} "[threads]~[slow]" --use-colour no)
  set_tests_properties(${target}.threads PROPERTIES LABELS "fast;threads")
  add_test(NAME ${target}.slow COMMAND ${target} "[slow]" --use-colour no)
  set_tests_properties(${target}.slow PROPERTIES LABELS "slow" TIMEOUT 3600)
endfunction()
