// See cublas_v2.h.
#pragma once
struct cusparseContext;
typedef cusparseContext* cusparseHandle_t;
enum cusparseStatus_t : int;
