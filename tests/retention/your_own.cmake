# Follows docs/policies/your-own.md: takes the code of its two policies, the line for registry.h and the one for
# registry.cc, and puts them where the page says, in a copy below the build folder.
set(page_file ${PROJECT_SOURCE_DIR}/docs/policies/your-own.md)
set(retention ${PROJECT_SOURCE_DIR}/src/retention)
set(your_own_dir ${CMAKE_CURRENT_BINARY_DIR}/your_own)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_file} ${retention}/registry.h
                                                               ${retention}/registry.cc)

# What stands in `text` between `from` and `to`.
function(between text from to out)
  string(FIND "${text}" "${from}" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "${page_file} has no '${from}'")
  endif()
  string(LENGTH "${from}" skip)
  math(EXPR begin "${begin} + ${skip}")
  string(SUBSTRING "${text}" ${begin} -1 rest)
  string(FIND "${rest}" "${to}" end)
  string(SUBSTRING "${rest}" 0 ${end} found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Writes `file` of src/retention with `line` behind `anchor`.
function(insert_line file anchor line)
  file(READ ${retention}/${file} text)
  string(FIND "${text}" "${anchor}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${file} has no '${anchor}'")
  endif()
  string(REPLACE "${anchor}" "${anchor}\n${line}" text "${text}")
  file(CONFIGURE OUTPUT ${your_own_dir}/retention/${file} CONTENT "${text}" @ONLY)
endfunction()

file(READ ${page_file} page)
between("${page}" "```cpp\n" "```" code)
between("${page}" "registered likewise as `kDistinctPolicy`:\n\n```cpp\n" "```" key_reader)
between("${page}" "In `registry.h`, beside the others:\n\n    " "\n" declaration)
between("${page}" "In the list `kPolicies` of `registry.cc`:\n\n    " "\n" entry)
file(CONFIGURE OUTPUT ${your_own_dir}/fading.cc CONTENT "${code}" @ONLY)
file(CONFIGURE OUTPUT ${your_own_dir}/distinct.cc CONTENT "${key_reader}" @ONLY)
foreach(line declaration entry)
  string(REPLACE "kFadingPolicy" "kDistinctPolicy" second "${${line}}")
  string(REPLACE "kFadingPolicy" "kIgnoringPolicy" third "${${line}}")  # of your_own_test.cc
  string(APPEND ${line} "\n${second}\n${third}")
endforeach()
insert_line(registry.h "extern const PolicyInfo kFullPolicy;" "${declaration}")
insert_line(registry.cc "&kFullPolicy," "${entry}")
