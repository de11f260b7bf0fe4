// The OpenCL 1.1 functions in use, declared here because boards lack the headers, and the driver
// that provides them, loaded at run time because there may be none.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace tvmtune_opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_bool = uint32_t;
using cl_ulong = uint64_t;
using cl_bitfield = uint64_t;
using cl_platform_id = struct PlatformTag*;
using cl_device_id = struct DeviceTag*;
using cl_context = struct ContextTag*;
using cl_command_queue = struct QueueTag*;
using cl_mem = struct MemoryTag*;
using cl_program = struct ProgramTag*;
using cl_kernel = struct KernelTag*;
using cl_event = struct EventTag*;

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_bool CL_TRUE = 1;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;
constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT = 0x100A;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
constexpr cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_uint CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;

// X(result, name, parameters)
#define TVMTUNE_OPENCL_FUNCTIONS(X)                                                               \
  X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                               \
  X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))                 \
  X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))      \
  X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                     \
  X(cl_context, clCreateContext,                                                                  \
    (const intptr_t*, cl_uint, const cl_device_id*,                                               \
     void (*)(const char*, const void*, size_t, void*), void*, cl_int*))                          \
  X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int*))     \
  X(cl_int, clFinish, (cl_command_queue))                                                         \
  X(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void*, cl_int*))                    \
  X(cl_int, clReleaseMemObject, (cl_mem))                                                         \
  X(cl_int, clEnqueueReadBuffer,                                                                  \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  X(cl_int, clEnqueueWriteBuffer,                                                                 \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*,    \
     cl_event*))                                                                                  \
  X(cl_int, clEnqueueCopyBuffer,                                                                  \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  X(cl_program, clCreateProgramWithSource,                                                        \
    (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                  \
  X(cl_int, clBuildProgram,                                                                       \
    (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*))  \
  X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))   \
  X(cl_int, clReleaseProgram, (cl_program))                                                       \
  X(cl_kernel, clCreateKernel, (cl_program, const char*, cl_int*))                                \
  X(cl_int, clReleaseKernel, (cl_kernel))                                                         \
  X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                            \
  X(cl_int, clGetKernelWorkGroupInfo, (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*)) \
  X(cl_int, clEnqueueNDRangeKernel,                                                               \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,  \
     const cl_event*, cl_event*))                                                                 \
  X(cl_int, clWaitForEvents, (cl_uint, const cl_event*))                                          \
  X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))                 \
  X(cl_int, clReleaseEvent, (cl_event))

struct Driver {
  std::string path;
#define X(result, name, parameters) result(*name) parameters = nullptr;
  TVMTUNE_OPENCL_FUNCTIONS(X)
#undef X

  // Opens the library; returns an error message, or an empty string on success.
  std::string Open(const std::string& library) {
    path = library;
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
#define X(result, name, parameters)                                           \
  name = reinterpret_cast<result(*) parameters>(dlsym(handle, #name));        \
  if (name == nullptr) return library + ": it does not define " #name;
    TVMTUNE_OPENCL_FUNCTIONS(X)
#undef X
    return "";
  }
};

// Candidate driver libraries: the ICD loader first, then Mali's, which are drivers themselves.
inline std::vector<std::string> DriverPaths() {
  const char* chosen = std::getenv("TVMTUNE_OPENCL_LIBRARY");
  if (chosen != nullptr && *chosen != 0) return {chosen};
  return {"libOpenCL.so.1",
          "libOpenCL.so",
          "libmali.so.1",
          "libmali.so",
          "libGLES_mali.so",
          "/vendor/lib64/libOpenCL.so",
          "/vendor/lib64/egl/libGLES_mali.so",
          "/system/vendor/lib64/libOpenCL.so"};
}

inline std::string ErrorName(cl_int code) {
  switch (code) {
#define X(number, name) \
  case number:          \
    return #name;
    X(-1, CL_DEVICE_NOT_FOUND)
    X(-2, CL_DEVICE_NOT_AVAILABLE)
    X(-3, CL_COMPILER_NOT_AVAILABLE)
    X(-4, CL_MEM_OBJECT_ALLOCATION_FAILURE)
    X(-5, CL_OUT_OF_RESOURCES)
    X(-6, CL_OUT_OF_HOST_MEMORY)
    X(-7, CL_PROFILING_INFO_NOT_AVAILABLE)
    X(-8, CL_MEM_COPY_OVERLAP)
    X(-11, CL_BUILD_PROGRAM_FAILURE)
    X(-12, CL_MAP_FAILURE)
    X(-13, CL_MISALIGNED_SUB_BUFFER_OFFSET)
    X(-14, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
    X(-15, CL_COMPILE_PROGRAM_FAILURE)
    X(-16, CL_LINKER_NOT_AVAILABLE)
    X(-17, CL_LINK_PROGRAM_FAILURE)
    X(-30, CL_INVALID_VALUE)
    X(-31, CL_INVALID_DEVICE_TYPE)
    X(-32, CL_INVALID_PLATFORM)
    X(-33, CL_INVALID_DEVICE)
    X(-34, CL_INVALID_CONTEXT)
    X(-35, CL_INVALID_QUEUE_PROPERTIES)
    X(-36, CL_INVALID_COMMAND_QUEUE)
    X(-38, CL_INVALID_MEM_OBJECT)
    X(-42, CL_INVALID_BINARY)
    X(-43, CL_INVALID_BUILD_OPTIONS)
    X(-44, CL_INVALID_PROGRAM)
    X(-45, CL_INVALID_PROGRAM_EXECUTABLE)
    X(-46, CL_INVALID_KERNEL_NAME)
    X(-47, CL_INVALID_KERNEL_DEFINITION)
    X(-48, CL_INVALID_KERNEL)
    X(-49, CL_INVALID_ARG_INDEX)
    X(-50, CL_INVALID_ARG_VALUE)
    X(-51, CL_INVALID_ARG_SIZE)
    X(-52, CL_INVALID_KERNEL_ARGS)
    X(-53, CL_INVALID_WORK_DIMENSION)
    X(-54, CL_INVALID_WORK_GROUP_SIZE)
    X(-55, CL_INVALID_WORK_ITEM_SIZE)
    X(-56, CL_INVALID_GLOBAL_OFFSET)
    X(-57, CL_INVALID_EVENT_WAIT_LIST)
    X(-58, CL_INVALID_EVENT)
    X(-59, CL_INVALID_OPERATION)
    X(-61, CL_INVALID_BUFFER_SIZE)
    X(-63, CL_INVALID_GLOBAL_WORK_SIZE)
    X(-1001, CL_PLATFORM_NOT_FOUND_KHR)
    X(-9999, NVIDIA_ILLEGAL_READ_OR_WRITE)
#undef X
    default:
      return "OpenCL error " + std::to_string(code);
  }
}

}  // namespace tvmtune_opencl
