// Replaces cuBLAS's header of this name, whose package is large. libtorch's CUDA headers use the types in this folder
// only in declarations that the shim does not need, so declarations are enough.
#pragma once
struct cublasContext;
typedef cublasContext* cublasHandle_t;
enum cublasStatus_t : int;
