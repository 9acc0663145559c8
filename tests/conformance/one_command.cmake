# Run with cmake -P: the command that docs/TESTING.md and main.cc give builds the suite, in an environment with nothing in
# it and a folder with nothing else. SOURCE_DIR is the project's root.
set(command "g++ -std=c++20 -O2 -I. tests/conformance/*.cc -ldl -pthread -o conformance")
foreach(file docs/TESTING.md tests/conformance/main.cc)
  file(READ ${SOURCE_DIR}/${file} text)
  string(FIND "${text}" "${command} && ./conformance" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${file} does not give the command: ${command} && ./conformance")
  endif()
endforeach()

execute_process(COMMAND mktemp -d OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
# What a person would copy to a machine: these folders alone.
foreach(folder base cuda tests/conformance)
  get_filename_component(parent ${dir}/${folder} DIRECTORY)
  file(COPY ${SOURCE_DIR}/${folder} DESTINATION ${parent})
endforeach()
execute_process(COMMAND env -i PATH=/usr/bin:/bin sh -c "${command} && ./conformance --list" WORKING_DIRECTORY ${dir}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
file(REMOVE_RECURSE ${dir})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the command failed:\n${output}")
endif()
