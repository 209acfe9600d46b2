# kvasir_options: flags every target of the project shares. No -ffast-math anywhere, and no contraction of a*b+c:
# a kernel's arithmetic is what its source says.
add_library(kvasir_options INTERFACE)
target_compile_options(kvasir_options INTERFACE -Wall -Wextra -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
                                                -ffp-contract=off)
# Files of one unity build see each other's names, and count as one header.
if(CMAKE_UNITY_BUILD)
  target_compile_options(kvasir_options INTERFACE -Wno-subobject-linkage)
else()
  target_compile_options(kvasir_options INTERFACE -Wshadow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in any inlined "literal" + string: GCC bug 105651, mended in 13.
  target_compile_options(kvasir_options INTERFACE -Wno-restrict)
endif()
if(KVASIR_WERROR)
  target_compile_options(kvasir_options INTERFACE -Werror)
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND KVASIR_SANITIZE MATCHES address.*undefined)
    # Null pointers the address sanitizer reports itself; these three are a fifth of what a file takes to compile.
    target_compile_options(kvasir_options INTERFACE -fno-sanitize=null,vptr,object-size)
    # Checks as calls: a fifth again, and slower to run.
    set(KVASIR_QUICK_CHECKS --param=asan-instrumentation-with-call-threshold=0)
  endif()
  target_link_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE})
endif()
if(KVASIR_FUZZ AND NOT KVASIR_FUZZ STREQUAL corpora)
  target_compile_options(kvasir_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# kvasir_module(NAME SOURCES a.cc b.cc DEPENDS base tensor): one folder of src/, one object library. A module sees the
# headers of the modules it depends on by convention; tests/structure enforces it. COLD: no code of it takes a noticeable
# part of any run, so it is compiled quickly rather than well; QUICK_CHECKS: nor of a test under sanitizers.
function(kvasir_module name)
  cmake_parse_arguments(ARG "COLD;QUICK_CHECKS" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(kvasir_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(kvasir_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(kvasir_${name} PRIVATE kvasir_options fmt::fmt)
  if(ARG_COLD)
    target_compile_options(kvasir_${name} PRIVATE -O1)
  endif()
  if(ARG_QUICK_CHECKS)
    target_compile_options(kvasir_${name} PRIVATE ${KVASIR_QUICK_CHECKS})
  endif()
  set_property(GLOBAL APPEND PROPERTY KVASIR_MODULES ${name})
  set_property(GLOBAL PROPERTY KVASIR_DEPENDS_${name} "${ARG_DEPENDS}")
endfunction()
