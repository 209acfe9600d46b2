// The files of src/tasks/definitions, embedded by CMakeLists.txt. Each is a JSON object of definitions by name;
// "common" holds the fields that those of its file have where they do not say otherwise.
// Thread-safety: immutable.
#pragma once

#include <string_view>

namespace kvasir {

std::string_view generated_definitions();
std::string_view gsm_definitions();
std::string_view infinitebench_definitions();
std::string_view leval_definitions();
std::string_view longbench_definitions();
std::string_view longbench_v_two_definitions();
std::string_view math_definitions();
std::string_view mmlu_definitions();
std::string_view ruler_definitions();
std::string_view scbench_definitions();

}  // namespace kvasir
