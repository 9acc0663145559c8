# The few functions with which every room declares what it builds.
#
#   gpumem_library(NAME SRCS a.cc b.cc DEPS x y)        a static library gpumem_NAME, alias gpumem::NAME
#   gpumem_executable(NAME SRCS main.cc DEPS x)         a program in <build>/bin
#   gpumem_test(ROOM SRCS a_test.cc DEPS x)             the room's one test binary, with GoogleTest's main; label ROOM
#
# UNINSTRUMENTED: in the thread sanitizer build these sources are compiled without it (grpcpp and protobuf of Debian
# are not instrumented, and inline code shared with them would report races that are not there).

add_library(gpumem_flags INTERFACE)
target_include_directories(gpumem_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(gpumem_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
if(GPUMEM_WERROR)
  target_compile_options(gpumem_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(gpumem_flags INTERFACE -Wthread-safety)
endif()

add_library(gpumem_sanitize INTERFACE)
if(GPUMEM_SANITIZE STREQUAL "address")
  # Without vptr: its check makes a pipe to see whether an address is readable, and calls every object bad in the tests
  # that take a process's last descriptor.
  target_compile_options(gpumem_sanitize INTERFACE -fsanitize=address,undefined -fno-sanitize=vptr
                                                   -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(GPUMEM_SANITIZE STREQUAL "thread")
  target_compile_options(gpumem_sanitize INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT GPUMEM_SANITIZE STREQUAL "")
  message(FATAL_ERROR "GPUMEM_SANITIZE is '${GPUMEM_SANITIZE}'; it must be empty, 'address' or 'thread'")
endif()

function(gpumem_common target uninstrumented)
  target_link_libraries(${target} PRIVATE gpumem_flags)
  if(NOT (uninstrumented AND GPUMEM_SANITIZE STREQUAL "thread"))
    target_link_libraries(${target} PRIVATE gpumem_sanitize)
  endif()
endfunction()

function(gpumem_library name)
  cmake_parse_arguments(ARG "UNINSTRUMENTED" "" "SRCS;DEPS" ${ARGN})
  add_library(gpumem_${name} STATIC ${ARG_SRCS})
  add_library(gpumem::${name} ALIAS gpumem_${name})
  target_link_libraries(gpumem_${name} PUBLIC ${ARG_DEPS})
  gpumem_common(gpumem_${name} "${ARG_UNINSTRUMENTED}")
endfunction()

function(gpumem_executable name)
  cmake_parse_arguments(ARG "UNINSTRUMENTED" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  gpumem_common(${name} "${ARG_UNINSTRUMENTED}")
endfunction()

# Tests run with the build's own binaries: TEST_BIN_DIR and TEST_LIB_DIR name them.
function(gpumem_test room)
  cmake_parse_arguments(ARG "UNINSTRUMENTED;NO_MAIN" "TIMEOUT" "SRCS;DEPS;PROGRAMS" ${ARGN})
  if(NOT GPUMEM_TESTS)
    return()
  endif()
  string(REPLACE "/" "_" binary "${room}_test")
  add_executable(${binary} ${ARG_SRCS})
  target_link_libraries(${binary} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest)
  if(NOT ARG_NO_MAIN)
    target_link_libraries(${binary} PRIVATE GTest::gtest_main)
  endif()
  target_compile_definitions(${binary} PRIVATE TEST_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
                                               TEST_LIB_DIR="${CMAKE_LIBRARY_OUTPUT_DIRECTORY}"
                                               TEST_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gpumem_common(${binary} "${ARG_UNINSTRUMENTED}")
  if(ARG_PROGRAMS)
    add_dependencies(${binary} ${ARG_PROGRAMS})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  gtest_discover_tests(${binary} DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS ${room} TIMEOUT ${ARG_TIMEOUT})
endfunction()
