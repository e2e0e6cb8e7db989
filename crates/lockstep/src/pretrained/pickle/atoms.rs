//! Numbers and texts, each of which has several encodings in a pickle.

use super::reader::Reader;
use super::value::Value;
use crate::pretrained::error::BadFile;

pub(super) fn integer(opcode: u8, reader: &mut Reader<'_>) -> Result<Value, BadFile> {
    Ok(match opcode {
        b'K' => Value::Int(reader.byte()?.into()),
        b'M' => Value::Int(u16::from_le_bytes(reader.array()?).into()),
        b'J' => Value::Int(i32::from_le_bytes(reader.array()?).into()),
        b'I' => match reader.line()? {
            b"00" | b"01" => Value::Other, // truth values
            digits => Value::Int(number(digits)?),
        },
        b'L' => reader.line().and_then(|digits| number(digits.strip_suffix(b"L").unwrap_or(digits))).map(Value::Int)?,
        0x8a => long(reader.counted::<1>()?),
        _ => long(reader.counted::<4>()?),
    })
}

/// Little-endian, two's complement, of any length.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Long(bytes.to_vec());
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

pub(super) fn text(opcode: u8, reader: &mut Reader<'_>) -> Result<Value, BadFile> {
    let bytes = match opcode {
        0x8c | b'U' => reader.counted::<1>()?,
        b'X' | b'T' => reader.counted::<4>()?,
        0x8d => reader.counted::<8>()?,
        b'V' => reader.line()?,
        _ => unquoted(reader.line()?)?,
    };
    utf8(bytes).map(Value::Text)
}

pub(super) fn bytes(opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
    match opcode {
        b'C' => reader.counted::<1>(),
        b'B' => reader.counted::<4>(),
        _ => reader.counted::<8>(),
    }
    .map(drop)
}

/// A text of protocol 0, written as in Python's source; names of weights need no escapes.
fn unquoted(line: &[u8]) -> Result<&[u8], BadFile> {
    match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => Ok(inner),
        _ => Err(BadFile::damaged("a text is not quoted as it should be")),
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<String, BadFile> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadFile::damaged("a text is not UTF-8"))?;
    Ok(text.to_owned())
}

pub(super) fn number<N: std::str::FromStr>(digits: &[u8]) -> Result<N, BadFile> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| BadFile::damaged("it has something else where digits belong"))
}
