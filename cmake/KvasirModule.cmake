# kvasir_options: flags every target of the project shares. No -ffast-math anywhere, and no contraction of a*b+c:
# a kernel's arithmetic is what its source says.
add_library(kvasir_options INTERFACE)
target_compile_options(kvasir_options INTERFACE -Wall -Wextra -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
                                                -ffp-contract=off)
# Files of one unity build see each other's names, and count as one header.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(kvasir_options INTERFACE -Wno-subobject-linkage)
elseif(NOT CMAKE_UNITY_BUILD)
  target_compile_options(kvasir_options INTERFACE -Wshadow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # Collects garbage from 1 GB on, not from 128 MB: a tenth of the time to compile.
  target_compile_options(kvasir_options INTERFACE --param=ggc-min-heapsize=1000000)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in any inlined "literal" + string: GCC bug 105651, mended in 13.
  target_compile_options(kvasir_options INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(kvasir_options INTERFACE -Wno-unknown-warning-option)
endif()
if(KVASIR_WERROR)
  target_compile_options(kvasir_options INTERFACE -Werror)
endif()
# For code that takes no noticeable part of any run: it is compiled quickly rather than well.
set(KVASIR_COLD_FLAGS -O1)
if(KVASIR_SANITIZE AND KVASIR_TESTS)
  set(KVASIR_COLD_FLAGS -O0)
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_compile_definitions(kvasir_options INTERFACE KVASIR_SANITIZED)
  target_link_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE})
endif()
if(KVASIR_FUZZ AND NOT KVASIR_FUZZ STREQUAL corpora)
  target_compile_options(kvasir_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# kvasir_module(NAME SOURCES a.cc b.cc DEPENDS base tensor): one folder of src/, one object library. A module sees the
# headers of the modules it depends on by convention; tests/structure enforces it. COLD: all of it is (KVASIR_COLD_FLAGS).
function(kvasir_module name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(kvasir_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(kvasir_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(kvasir_${name} PRIVATE kvasir_options fmt::fmt)
  # Most of the time that a file takes to compile is headers, which larger batches share.
  set_target_properties(kvasir_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  if(ARG_COLD)
    target_compile_options(kvasir_${name} PRIVATE ${KVASIR_COLD_FLAGS})
  endif()
  set_property(GLOBAL APPEND PROPERTY KVASIR_MODULES ${name})
  set_property(GLOBAL PROPERTY KVASIR_DEPENDS_${name} "${ARG_DEPENDS}")
endfunction()
