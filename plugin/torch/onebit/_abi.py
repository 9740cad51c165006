"""The C ABI of libonebit.so as ctypes sees it: structures, enumerations and prototypes of onebit.h and optimizer.h.

Invariant: each structure has the fields of its counterpart in include/onebit, in their order; the library checks the
sizes of those that begin with one.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Dict, Sequence, Tuple


class DataType(enum.IntEnum):
    """``onebitDataType_t``: element types, with NCCL's numbers."""

    UINT8 = 1
    INT32 = 2
    INT64 = 4
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9


ELEMENT_BYTES: Dict[DataType, int] = {
    DataType.UINT8: 1,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.FLOAT16: 2,
    DataType.FLOAT32: 4,
    DataType.FLOAT64: 8,
    DataType.BFLOAT16: 2,
}


class ReduceOp(enum.IntEnum):
    """``onebitRedOp_t``: reductions, with NCCL's numbers."""

    SUM = 0
    """Integers wrap around; fp16 and bf16 are summed in fp32 and rounded once."""
    AVG = 4
    """The sum times 1/ranks; floating types only."""


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("settings", ctypes.c_char_p)]


class Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("exact_calls", ctypes.c_uint64),
        ("compressed_calls", ctypes.c_uint64),
        ("reduced_bytes", ctypes.c_uint64),
        ("wire_bytes_sent", ctypes.c_uint64),
        ("wire_bytes_received", ctypes.c_uint64),
        ("residual_bytes", ctypes.c_uint64),
        ("compressed_ns", ctypes.c_uint64),
        ("encode_ns", ctypes.c_uint64),
        ("average_ns", ctypes.c_uint64),
        ("decode_ns", ctypes.c_uint64),
        ("waiting_ns", ctypes.c_uint64),
    ]


class Group(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double)
        for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "max_coeff", "min_coeff")
    ]


class OptimizerConfig(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("group", Group),
        ("groups", ctypes.POINTER(Group)),
        ("ngroups", ctypes.c_size_t),
        ("bias_correction", ctypes.c_int),
        ("freeze_step", ctypes.c_int64),
        ("coeff_beta", ctypes.c_double),
        ("factor_max", ctypes.c_double),
        ("factor_min", ctypes.c_double),
        ("factor_threshold", ctypes.c_double),
        ("var_freeze_step", ctypes.c_int64),
        ("var_update_scaler", ctypes.c_int64),
        ("local_step_scaler", ctypes.c_int64),
        ("local_step_clipper", ctypes.c_int64),
        ("gradient_clipping", ctypes.c_double),
        ("deepspeed_compat", ctypes.c_int),
        ("bound_moves", ctypes.c_int),
        ("norm_factor", ctypes.c_int),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("datatype", ctypes.c_int),
        ("gradient_datatype", ctypes.c_int),
        ("group", ctypes.c_size_t),
        ("mask", ctypes.c_void_p),
    ]


class Device(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("nccl_comm", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("settings", ctypes.c_char_p),
    ]


class OptimizerInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("steps", ctypes.c_int64),
        ("skipped_steps", ctypes.c_int64),
        ("compressed", ctypes.c_int),
        ("in_common", ctypes.c_int),
        ("memory", ctypes.c_uint64),
        ("full_bytes", ctypes.c_uint64),
        ("compressed_bytes", ctypes.c_uint64),
        ("fp32_bytes", ctypes.c_uint64),
    ]


_pointer = ctypes.c_void_p
_size = ctypes.c_size_t
_int = ctypes.c_int
_text = ctypes.c_char_p

# The arguments of each function that returns an onebitResult_t.
PROTOTYPES: Dict[str, Sequence[Any]] = {
    "onebitGetVersion": (ctypes.POINTER(_int),),
    "onebitGetSettings": (_pointer, _size, ctypes.POINTER(_size)),
    "onebitGetUniqueId": (ctypes.POINTER(UniqueId),),
    "onebitCommInitRankConfig": (ctypes.POINTER(_pointer), _int, UniqueId, _int, ctypes.POINTER(Config)),
    "onebitCommInitEnv": (ctypes.POINTER(_pointer), ctypes.POINTER(Config)),
    "onebitCommDestroy": (_pointer,),
    "onebitCommAbort": (_pointer,),
    "onebitCommGetAsyncError": (_pointer, ctypes.POINTER(_int)),
    "onebitCommCount": (_pointer, ctypes.POINTER(_int)),
    "onebitCommUserRank": (_pointer, ctypes.POINTER(_int)),
    "onebitCommGetStats": (_pointer, ctypes.POINTER(Stats)),
    "onebitAllReduce": (_pointer, _pointer, _size, _int, _int, _text, _pointer, _pointer),
    "onebitBroadcast": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "onebitAllGather": (_pointer, _pointer, _size, _int, _pointer, _pointer),
    "onebitBarrier": (_pointer,),
    "onebitTagBuffer": (_pointer, _size, _text),
    "onebitUntagBuffer": (_pointer,),
    "onebitScopeBegin": (_text,),
    "onebitScopeEnd": (),
    "onebitExplain": (_pointer, _size, _int, _int, _text, _pointer, _pointer, _size),
    "onebitResidualSave": (_pointer, _text),
    "onebitResidualLoad": (_pointer, _text),
    "onebitResidualReset": (_pointer, _text),
    "onebitResidualMemory": (_pointer, _text, ctypes.POINTER(_size)),
    "onebitResidualNorm": (_pointer, _text, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)),
    "onebitOptimizerParseConfig": (_text, ctypes.POINTER(OptimizerConfig)),
    "onebitOptimizerCreate": (
        ctypes.POINTER(_pointer),
        ctypes.POINTER(OptimizerConfig),
        ctypes.POINTER(Tensor),
        _size,
        _pointer,
    ),
    "onebitOptimizerCreateOnDevice": (
        ctypes.POINTER(_pointer),
        ctypes.POINTER(OptimizerConfig),
        ctypes.POINTER(Tensor),
        _size,
        ctypes.POINTER(Device),
    ),
    "onebitOptimizerDestroy": (_pointer,),
    "onebitOptimizerStep": (_pointer, ctypes.POINTER(_pointer), ctypes.POINTER(_int)),
    "onebitOptimizerSetLearningRate": (_pointer, _size, ctypes.c_double),
    "onebitOptimizerFreeze": (_pointer,),
    "onebitOptimizerGetInfo": (_pointer, ctypes.POINTER(OptimizerInfo)),
    "onebitOptimizerResidualNorm": (_pointer, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)),
    "onebitOptimizerGetState": (_pointer, _size, _text, _pointer, _size),
    "onebitOptimizerGetCoefficient": (_pointer, _size, ctypes.POINTER(ctypes.c_double)),
    "onebitOptimizerSave": (_pointer, _text),
    "onebitOptimizerSaveWhole": (_pointer, _text),
    "onebitOptimizerLoad": (_pointer, _text),
    "onebitOptimizerLoadStep": (_pointer, _text, ctypes.c_int64),
}


def declare(library: ctypes.CDLL) -> Tuple[str, ...]:
    """Sets the prototypes of all functions; returns the names of those that `library` lacks."""
    missing = []
    for name, arguments in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            missing.append(name)
            continue
        function.argtypes = list(arguments)
        function.restype = ctypes.c_int
    try:
        library.onebitGetLastError.argtypes = [_pointer]
        library.onebitGetLastError.restype = ctypes.c_char_p
    except AttributeError:
        missing.append("onebitGetLastError")
    return tuple(missing)
