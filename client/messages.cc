#include "client/messages.h"

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

namespace gpumem::client {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;

// --- reading --------------------------------------------------------------------------------------------------------

// Fields are told apart by number and wire type together: one with an unexpected type is skipped like an unknown one.
constexpr std::uint32_t Varint(protozero::pbf_tag_type tag) {
  return protozero::tag_and_type(tag, pbf_wire_type::varint);
}
constexpr std::uint32_t Bytes(protozero::pbf_tag_type tag) {
  return protozero::tag_and_type(tag, pbf_wire_type::length_delimited);
}

// Calls `field` at each field; it reads the value and returns true, or returns false to have it skipped.
template <typename Field>
void ForEach(pbf_reader reader, Field field) {
  while (reader.next()) {
    if (!field(reader.tag_and_type(), reader)) reader.skip();
  }
}

template <typename Field>
bool Parse(std::string_view bytes, Field field) {
  try {
    ForEach(pbf_reader(bytes.data(), bytes.size()), field);
    return true;
  } catch (const protozero::exception&) {
    return false;
  }
}

bool Set(std::string* out, pbf_reader& reader) {
  const protozero::data_view view = reader.get_view();
  out->assign(view.data(), view.size());
  return true;
}
bool Set(std::uint64_t* out, pbf_reader& reader) {
  *out = reader.get_uint64();
  return true;
}
bool Set(std::uint32_t* out, pbf_reader& reader) {
  *out = static_cast<std::uint32_t>(reader.get_uint64());
  return true;
}
bool Set(std::int32_t* out, pbf_reader& reader) {
  *out = static_cast<std::int32_t>(reader.get_uint64());
  return true;
}
bool Set(bool* out, pbf_reader& reader) {
  *out = reader.get_bool();
  return true;
}

bool Set(Device* out, pbf_reader& message) {
  ForEach(message.get_message(), [out](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&out->uuid, reader);
      case Bytes(2):
        return Set(&out->name, reader);
      case Varint(3):
        return Set(&out->state, reader);
      case Varint(4):
        return Set(&out->generation, reader);
      case Varint(5):
        return Set(&out->granularity_bytes, reader);
      case Varint(6):
        return Set(&out->capacity_bytes, reader);
      case Varint(15):
        return Set(&out->available_bytes, reader);
      default:
        return false;
    }
  });
  return true;
}

bool Set(Limits* out, pbf_reader& message) {
  ForEach(message.get_message(), [out](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Varint(1):
        return Set(&out->chunks_per_lease, reader);
      case Varint(2):
        return Set(&out->chunks_per_frame, reader);
      case Varint(3):
        return Set(&out->unacknowledged_frames, reader);
      default:
        return false;
    }
  });
  return true;
}

bool Set(Chunk* out, pbf_reader& message) {
  ForEach(message.get_message(), [out](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Varint(1):
        return Set(&out->chunk_id, reader);
      case Varint(2):
        return Set(&out->generation, reader);
      case Bytes(3):
        return Set(&out->device_uuid, reader);
      case Varint(4):
        return Set(&out->bytes, reader);
      default:
        return false;
    }
  });
  return true;
}

bool Set(Tensor* out, pbf_reader& message) {
  ForEach(message.get_message(), [out](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&out->name, reader);
      case Bytes(2):
        return Set(&out->dtype, reader);
      case Bytes(3):  // packed
        for (const std::uint64_t size : reader.get_packed_uint64()) out->shape.push_back(size);
        return true;
      case Varint(3):
        out->shape.push_back(reader.get_uint64());
        return true;
      case Varint(4):
        return Set(&out->offset_bytes, reader);
      case Varint(5):
        return Set(&out->size_bytes, reader);
      default:
        return false;
    }
  });
  return true;
}

bool Set(Segment* out, pbf_reader& message) {
  ForEach(message.get_message(), [out](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&out->name, reader);
      case Varint(2):
        return Set(&out->state, reader);
      case Varint(3):
        return Set(&out->lease_id, reader);
      case Varint(4):
        return Set(&out->generation, reader);
      case Varint(6):
        return Set(&out->bytes, reader);
      case Varint(7):
        return Set(&out->chunks, reader);
      case Varint(8):
        return Set(&out->tensors, reader);
      case Varint(9):
        return Set(&out->readers, reader);
      default:
        return false;
    }
  });
  return true;
}

// A repeated message field, one element at a time.
template <typename T>
bool Append(std::vector<T>* out, pbf_reader& reader) {
  return Set(&out->emplace_back(), reader);
}

// --- writing --------------------------------------------------------------------------------------------------------

// proto3: a default value is not written.
void Put(pbf_writer& writer, protozero::pbf_tag_type tag, std::uint64_t value) {
  if (value != 0) writer.add_uint64(tag, value);
}
void Put(pbf_writer& writer, protozero::pbf_tag_type tag, std::int32_t value) {
  if (value != 0) writer.add_int32(tag, value);
}
void Put(pbf_writer& writer, protozero::pbf_tag_type tag, std::string_view value) {
  if (!value.empty()) writer.add_string(tag, value.data(), value.size());
}

void Put(pbf_writer& writer, protozero::pbf_tag_type tag, const std::vector<ChunkSpec>& specs) {
  for (const ChunkSpec& spec : specs) {
    pbf_writer inner(writer, tag);
    inner.add_string(1, spec.device_uuid);  // always: protozero leaves an empty message out
    Put(inner, 2, spec.chunk_bytes);
    Put(inner, 3, std::uint64_t{spec.count});
  }
}

void Put(pbf_writer& writer, protozero::pbf_tag_type tag, const std::vector<Outcome>& outcomes) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(outcomes.size());
  for (const Outcome outcome : outcomes) numbers.push_back(static_cast<std::int32_t>(outcome));
  writer.add_packed_enum(tag, numbers.begin(), numbers.end());
}

void PutManifest(pbf_writer& writer, protozero::pbf_tag_type tag, const std::vector<Tensor>& tensors) {
  pbf_writer manifest(writer, tag);
  for (const Tensor& tensor : tensors) {
    pbf_writer inner(manifest, 1);
    inner.add_string(1, tensor.name);  // always, as above
    Put(inner, 2, tensor.dtype);
    inner.add_packed_uint64(3, tensor.shape.begin(), tensor.shape.end());
    Put(inner, 4, tensor.offset_bytes);
    Put(inner, 5, tensor.size_bytes);
  }
}

// Length of the well-formed UTF-8 sequence at the front of `text`, 0 when there is none (RFC 3629).
std::size_t SequenceLength(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  std::size_t length = 0;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xbf;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

}  // namespace

bool ValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string CleanUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = SequenceLength(text);
    if (length == 0) {
      clean.push_back('?');
      text.remove_prefix(1);
    } else {
      clean.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return clean;
}

std::string Encode(const HelloRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, static_cast<std::int32_t>(request.driver));
  Put(writer, 3, kVersion);
  Put(writer, 4, std::uint64_t{kProtocolMajor});
  Put(writer, 5, request.driver_version);
  return bytes;
}

std::string Encode(const RegisterHolderRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.name);
  Put(writer, 4, request.role);
  return bytes;
}

std::string Encode(const AllocateRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.holder_id);
  Put(writer, 4, request.specs);
  return bytes;
}

std::string Encode(const ReleaseRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.lease_id);
  Put(writer, 4, request.outcomes);
  return bytes;
}

std::string Encode(const BuildSegmentRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.holder_id);
  Put(writer, 4, request.name);
  Put(writer, 5, request.specs);
  return bytes;
}

std::string Encode(const SealSegmentRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.lease_id);
  Put(writer, 4, request.outcomes);
  PutManifest(writer, 5, request.tensors);
  return bytes;
}

std::string Encode(const AttachSegmentRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.holder_id);
  Put(writer, 4, request.name);
  return bytes;
}

std::string Encode(const DetachSegmentRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.attachment_id);
  Put(writer, 4, request.outcomes);
  return bytes;
}

std::string Encode(const ListSegmentsRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.prefix);
  return bytes;
}

std::string Encode(const ReportFaultRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  Put(writer, 2, request.request_id);
  Put(writer, 3, request.cuda_error);
  Put(writer, 4, request.cuda_error_name);
  Put(writer, 5, request.detail);
  return bytes;
}

std::string Encode(const WatchEventsRequest& request) {
  std::string bytes;
  pbf_writer writer(bytes);
  Put(writer, 1, request.session_id);
  return bytes;
}

bool Decode(std::string_view bytes, HelloResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&response->instance, reader);
      case Bytes(2):
        return Set(&response->daemon_version, reader);
      case Varint(3):
        return Set(&response->protocol_major, reader);
      case Varint(4):
        return Set(&response->driver, reader);
      case Bytes(5):
        return Append(&response->devices, reader);
      case Bytes(6):
        return Set(&response->limits, reader);
      case Bytes(7):
        return Set(&response->tenant, reader);
      default:
        return false;
    }
  });
}

bool Decode(std::string_view bytes, RegisterHolderResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&response->instance, reader);
    if (key == Varint(2)) return Set(&response->holder_id, reader);
    return false;
  });
}

bool Decode(std::string_view bytes, GrantResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&response->instance, reader);
      case Varint(2):
        return Set(&response->lease_id, reader);
      case Varint(3):
        return Set(&response->asked_bytes, reader);
      case Varint(4):
        return Set(&response->charged_bytes, reader);
      case Bytes(5):
        return Append(&response->chunks, reader);
      case Varint(6):
        return Set(&response->pushed_chunks, reader);
      default:
        return false;
    }
  });
}

bool Decode(std::string_view bytes, ReleaseResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&response->instance, reader);
    if (key == Varint(2)) return Set(&response->released_bytes, reader);
    if (key == Varint(3)) return Set(&response->quarantined_bytes, reader);
    return false;
  });
}

bool Decode(std::string_view bytes, SealSegmentResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&response->instance, reader);
    if (key == Bytes(2)) return Set(&response->name, reader);
    return false;
  });
}

bool Decode(std::string_view bytes, AttachSegmentResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Bytes(1):
        return Set(&response->instance, reader);
      case Varint(2):
        return Set(&response->attachment_id, reader);
      case Bytes(3):
        return Set(&response->segment, reader);
      case Bytes(4):
        return Append(&response->chunks, reader);
      case Bytes(5):
        ForEach(reader.get_message(), [response](std::uint32_t inner_key, pbf_reader& inner) {
          return inner_key == Bytes(1) && Append(&response->tensors, inner);
        });
        return true;
      default:
        return false;
    }
  });
}

bool Decode(std::string_view bytes, DetachSegmentResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    return key == Bytes(1) && Set(&response->instance, reader);
  });
}

bool Decode(std::string_view bytes, ListSegmentsResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&response->instance, reader);
    if (key == Bytes(2)) return Append(&response->segments, reader);
    return false;
  });
}

bool Decode(std::string_view bytes, ReportFaultResponse* response) {
  return Parse(bytes, [response](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&response->instance, reader);
    if (key == Varint(2)) return Set(&response->quarantined_bytes, reader);
    return false;
  });
}

namespace {

bool SetFenced(Event* event, pbf_reader& message) {
  event->kind = Event::Kind::kSessionFenced;
  ForEach(message.get_message(), [event](std::uint32_t key, pbf_reader& reader) {
    if (key == Varint(1)) return Set(&event->session_id, reader);
    if (key == Varint(2)) return Set(&event->state, reader);
    if (key == Varint(3)) return Set(&event->bytes, reader);
    if (key == Bytes(4)) return Set(&event->detail, reader);
    return false;
  });
  return true;
}

bool SetEnded(Event* event, pbf_reader& message) {
  event->kind = Event::Kind::kSessionEnded;
  ForEach(message.get_message(), [event](std::uint32_t key, pbf_reader& reader) {
    if (key == Varint(1)) return Set(&event->session_id, reader);
    if (key == Varint(2)) return Set(&event->bytes, reader);
    return false;
  });
  return true;
}

bool SetDevice(Event* event, pbf_reader& message) {
  event->kind = Event::Kind::kDeviceChanged;
  ForEach(message.get_message(), [event](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&event->name, reader);
    if (key == Varint(2)) return Set(&event->state, reader);
    if (key == Bytes(4)) return Set(&event->detail, reader);
    return false;
  });
  return true;
}

bool SetSegment(Event* event, pbf_reader& message) {
  event->kind = Event::Kind::kSegmentChanged;
  ForEach(message.get_message(), [event](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&event->name, reader);
    if (key == Varint(2)) return Set(&event->state, reader);
    if (key == Varint(3)) return Set(&event->removed, reader);
    return false;
  });
  return true;
}

bool SetStopping(Event* event, pbf_reader& message) {
  event->kind = Event::Kind::kDaemonStopping;
  std::uint64_t seconds = 0;
  ForEach(message.get_message(), [&seconds](std::uint32_t key, pbf_reader& reader) {
    if (key != Bytes(1)) return false;
    ForEach(reader.get_message(), [&seconds](std::uint32_t inner_key, pbf_reader& inner) {
      return inner_key == Varint(1) && Set(&seconds, inner);
    });
    return true;
  });
  event->detail = "gpumemd stops in " + std::to_string(seconds) + " s";
  return true;
}

}  // namespace

bool Decode(std::string_view bytes, Event* event) {
  return Parse(bytes, [event](std::uint32_t key, pbf_reader& reader) {
    switch (key) {
      case Varint(1):
        return Set(&event->sequence, reader);
      case Bytes(3):
        return SetFenced(event, reader);
      case Bytes(4):
        return SetEnded(event, reader);
      case Bytes(5):
        return SetDevice(event, reader);
      case Bytes(6):
        return SetSegment(event, reader);
      case Bytes(7):
        return SetStopping(event, reader);
      default:
        return false;
    }
  });
}

bool DecodeErrorInfo(std::string_view bytes, ErrorInfo* info) {
  bool found = false;
  const auto read_info = [info](std::uint32_t key, pbf_reader& reader) {
    if (key == Bytes(1)) return Set(&info->reason, reader);
    if (key == Bytes(2)) return Set(&info->domain, reader);
    if (key != Bytes(3)) return false;
    auto& entry = info->metadata.emplace_back();
    ForEach(reader.get_message(), [&entry](std::uint32_t inner_key, pbf_reader& inner) {
      if (inner_key == Bytes(1)) return Set(&entry.first, inner);
      if (inner_key == Bytes(2)) return Set(&entry.second, inner);
      return false;
    });
    return true;
  };
  const bool parsed = Parse(bytes, [&](std::uint32_t key, pbf_reader& reader) {
    if (key != Bytes(3) || found) return false;
    std::string type;
    std::string value;
    ForEach(reader.get_message(), [&](std::uint32_t inner_key, pbf_reader& inner) {
      if (inner_key == Bytes(1)) return Set(&type, inner);
      if (inner_key == Bytes(2)) return Set(&value, inner);
      return false;
    });
    if (type != "type.googleapis.com/google.rpc.ErrorInfo") return true;
    found = true;
    ForEach(pbf_reader(value), read_info);
    return true;
  });
  return parsed && found;
}

}  // namespace gpumem::client
