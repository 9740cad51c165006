// Where an untagged call gets its tag: the scope of its thread, or the registered buffer that it reads.
//
// Scopes are a thread's own; registered buffers the process's, under a lock. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace onebit::api {

Status tag_buffer(const void* base, std::size_t bytes, std::string_view tag);
Status untag_buffer(const void* base);
Status begin_scope(std::string_view tag);
Status end_scope();

/// The tag of a call: `tag` itself if there is one, else the scope's, else the buffer's; empty for none.
std::string resolve_tag(std::string_view tag, const void* buffer);
/// After a call with argument `tag` has been made: moves the scope that named it on to its next call.
void count_call(std::string_view tag);

}  // namespace onebit::api
