//! The group used for measurements: one without the extra message of the call check.

use c10d::{DebugLevel, GroupOptions, ProcessGroup, Result};

/// A group of the same ranks that do not compare their calls ([`GroupOptions::compare_calls`]), since comparing costs an
/// additional message. A collective of the whole job, like [`ProcessGroup::new_group`].
///
/// # Errors
/// As [`ProcessGroup::new_group`].
pub fn bare(group: &ProcessGroup) -> Result<ProcessGroup> {
    let options = GroupOptions { compare_calls: Some(false), debug: Some(DebugLevel::Off), ..group.options().clone() };
    let made = group.new_group(group.members(), &options)?;
    Ok(made.expect("every rank of the group is a member"))
}
