// A real disk that is soon full: a tmpfs of some megabytes, for those who may mount one.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "base/check.h"

namespace kvasir::test {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "kvasir-test-XXXXXX").string()) {
    KVASIR_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class SmallDisk {
 public:
  explicit SmallDisk(int mebibytes) {
    const std::string size = "size=" + std::to_string(mebibytes) + "m";
    mounted_ = ::mount("kvasir-test", folder_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

}  // namespace kvasir::test
