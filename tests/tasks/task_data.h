// Reads the small files of tests/tasks/data, and writes files for one test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tasks/item_file.h"
#include "tasks/task.h"

namespace kvasir {

inline std::string task_data(const std::string& name) {
  const char* source = std::getenv("KVASIR_SOURCE_DIR");
  return std::string(source == nullptr ? "." : source) + "/tests/tasks/data/" + name;
}

// Returns the items that `task` makes of the file `name` of tests/tasks/data.
inline std::vector<TaskItem> items_of(const EvalTask& task, const std::string& name) {
  const std::string path = task_data(name);
  std::vector<TaskItem> items;
  const Result<ItemFile> file = ItemFile::open(path, task.columns);
  EXPECT_TRUE(file.ok()) << file.status().message();
  std::vector<nlohmann::ordered_json> shots;
  const Result<std::vector<std::string>> places = shots_paths(task, path);
  EXPECT_TRUE(places.ok()) << places.status().message();
  for (const std::string& place : *places) {
    if (!std::filesystem::exists(place)) continue;
    const Result<ItemFile> examples = ItemFile::open(place, task.columns);
    EXPECT_TRUE(examples.ok()) << examples.status().message();
    for (std::size_t i = 0; i < static_cast<std::size_t>(task.shots); ++i) shots.push_back(examples->item(i));
    break;
  }
  for (std::size_t i = 0; i < file->size(); ++i) {
    Result<TaskItem> item = make_item(task, file->item(i), i, shots, file_variable(path));
    EXPECT_TRUE(item.ok()) << task.name << ": " << item.status().message();
    if (item.ok()) items.push_back(std::move(*item));
  }
  return items;
}

// A file that is removed at the end of the test.
class TemporaryFile {
 public:
  // `ending`: such as ".csv".
  TemporaryFile(const std::string& text, const std::string& ending) {
    static int number = 0;
    path_ =
        ::testing::TempDir() + "kvasir_tasks_" + std::to_string(::getpid()) + "_" + std::to_string(++number) + ending;
    std::ofstream(path_, std::ios::binary) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Errors are one short line of valid UTF-8.
inline void expect_short_message(const std::string& message) {
  EXPECT_FALSE(message.empty());
  EXPECT_LT(message.size(), 4000u);
  for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << message;
}

}  // namespace kvasir
