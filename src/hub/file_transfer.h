// Downloads one file of a repository into a partial file, which a later try continues, and checks its content.
// Thread-safety: none.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "hub/content_hash.h"
#include "hub/hub_api.h"
#include "hub/transfer.h"

namespace kvasir::hub {

class FileTransfer : public Transfer {
 public:
  // `file`: as the hub lists it. `partial`: path of the partial file, named for the content's hash, so that it never
  // holds a part of other content. The partial file stays when a transfer ends early, and is removed when its content
  // is wrong.
  FileTransfer(std::string url, HubFile file, std::string partial, std::function<bool()> cancelled);
  ~FileTransfer() override;

  Result<std::optional<std::uint64_t>> begin() override;
  std::string if_range() const override { return etag_; }
  Verdict redirected(const Response& response) override { return check_identity(response); }
  Verdict answered(const Response& response) override;
  Verdict take(std::string_view bytes) override;
  Verdict end() override;

  const HubFile& file() const { return file_; }
  std::uint64_t written() const { return written_; }  // bytes of the content written so far

 private:
  Status read_what_is_there();
  Status restart();  // from the first byte
  Verdict check_identity(const Response& response) const;
  Status failed(const char* what) const;

  HubFile file_;
  std::string partial_;
  std::function<bool()> cancelled_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  std::optional<ContentHash> hash_;  // of the bytes written
  std::string etag_;                 // of the answer that the bytes came with
  int mismatches_ = 0;
};

}  // namespace kvasir::hub
